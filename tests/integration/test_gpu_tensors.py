"""Jobs with tensors on GPUs; stand-ins for libcuda and libnccl simulate the GPUs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from gpu_stand_ins import build, environment
from launching import run

pytestmark = pytest.mark.usefixtures("no_child_is_left")
SUPPORT = Path(__file__).parents[1] / "unit" / "support"
WORKERS = Path(__file__).with_name("workers")
WORKER = str(WORKERS / "gpu_tensors.py")


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand_ins")
    build(folder)
    return folder


def told_by_ranks(folder: Path, ranks: int, *arguments: str, **settings: str) -> tuple[str, str]:
    environ = {**environment(folder, gpus=2), "PYTHONPATH": str(SUPPORT), **settings}
    words = ["-np", str(ranks), sys.executable, WORKER, *arguments]
    status, out, err = run(*words, env=environ)
    assert status == 0, out + err
    return out, err


def test_one_rank_over_nccl(stand_ins: Path) -> None:
    out, err = told_by_ranks(stand_ins, 1, "own")
    assert "staged False shared False nccl True" in out
    assert "host memory" not in err


@pytest.mark.parametrize("is_loaded_before", [False, True])
def test_nccl_comes_with_the_first_gpu_tensor_and_is_one_that_is_loaded(
    stand_ins: Path, tmp_path: Path, is_loaded_before: bool
) -> None:
    of_framework = shutil.copy(stand_ins / "libnccl.so.2", tmp_path)
    words = [str(of_framework)] if is_loaded_before else []
    environ = {**environment(stand_ins, gpus=1), "PYTHONPATH": str(SUPPORT)}
    worker = str(WORKERS / "gpu_nccl_library.py")
    status, out, err = run("-np", "1", sys.executable, worker, *words, env=environ)
    assert status == 0, out + err
    expected = of_framework if is_loaded_before else stand_ins / "libnccl.so.2"
    assert f"NCCL is {expected}\n" in out, out


def test_two_ranks_on_one_gpu_share_its_memory_and_say_so_once(stand_ins: Path) -> None:
    out, err = told_by_ranks(stand_ins, 2, "shared")
    assert out.count("shared True nccl False") == 2
    assert err.count("share one GPU; there are more ranks than GPUs") == 1
    assert err.count("GPU tensors travel over CUDA IPC: rank 0 (pid ") == 1
    assert "and rank 1 (pid " in err


def test_through_host_memory_on_demand(stand_ins: Path) -> None:
    out, err = told_by_ranks(stand_ins, 2, "own", HOROVOD_GPU_OPERATIONS="host")
    assert out.count("staged True shared False nccl False") == 2
    assert "GPU tensors travel" not in err
