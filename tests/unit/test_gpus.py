"""What is found of CUDA and NCCL, and which way tensors on GPUs are to go."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from horovod import _native
from horovod.core import gpus
from horovod.errors import SettingError
from horovod.settings import Settings

AUTO, NCCL, HOST = 0, 1, 2


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "has_cuda", lambda: False)
    monkeypatch.setattr(gpus, "cuda_problem", lambda: "libcuda.so.1: not there")


def make_library(folder: Path) -> str:
    folder.mkdir(parents=True)
    library = folder / gpus.NCCL
    library.touch()
    return str(library)


def test_where_nccl_is_looked_for(tmp_path: Path) -> None:
    named = make_library(tmp_path / "home" / "lib")
    in_wheel = make_library(tmp_path / "packages" / "nvidia" / "nccl" / "lib")
    folders = ["", str(tmp_path / "other"), str(tmp_path / "packages")]
    assert gpus.nccl_candidates({}, folders) == [in_wheel, gpus.NCCL]
    environ = {"HOROVOD_NCCL_HOME": str(tmp_path / "home")}
    assert gpus.nccl_candidates(environ, folders) == [named, in_wheel, gpus.NCCL]
    assert gpus.nccl_candidates(environ, []) == [named, gpus.NCCL]
    assert gpus.nccl_candidates({"HOROVOD_NCCL_HOME": "/nowhere"}, []) == [gpus.NCCL]


@pytest.mark.usefixtures("without_cuda")
def test_without_a_driver_there_is_nothing() -> None:
    assert gpus.nccl_version() == 0
    assert gpus.nccl_problem() == "no CUDA driver: libcuda.so.1: not there"
    assert gpus.device_plane(Settings(), 0) is None


def test_a_driver_without_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "has_cuda", lambda: True)
    monkeypatch.setattr(gpus, "cuda_problem", lambda: None)
    monkeypatch.setattr(gpus, "_loaded_nccl_version", lambda: 0)
    assert gpus.nccl_version() == 0
    assert "neither in a package nor in the system" in str(gpus.nccl_problem())
    monkeypatch.setattr(gpus, "_loaded_nccl_version", lambda: 22703)
    assert gpus.nccl_version() == 22703
    assert gpus.nccl_problem() is None
    assert gpus.device_plane(Settings(), 0) is not None  # and nothing has been opened


@pytest.mark.parametrize("is_loaded", [False, True])
def test_one_that_is_loaded_is_the_one_whose_version_counts(
    monkeypatch: pytest.MonkeyPatch, is_loaded: bool
) -> None:
    tried: list[str] = []

    class Library:
        def __init__(self, name: str, mode: int) -> None:
            tried.append(name)
            if mode == os.RTLD_NOLOAD and not (is_loaded and name == gpus.NCCL):
                raise OSError("not loaded")

        def ncclGetVersion(self, version: Any) -> int:  # noqa: N802
            version._obj.value = 22809
            return 0

    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.setattr(gpus, "nccl_candidates", lambda *_: ["/wheel/libnccl.so.2", gpus.NCCL])
    assert gpus._loaded_nccl_version.__wrapped__() == 22809
    assert tried == ["/wheel/libnccl.so.2", gpus.NCCL] + ["/wheel/libnccl.so.2"] * (not is_loaded)


def test_nccl_has_its_own_time_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(gpus, "has_cuda", lambda: True)
    monkeypatch.setattr(_native, "DevicePlane", lambda *_, **options: given.update(options))
    for environ, seconds in (({}, 120), ({"HOROVOD_NCCL_CONNECT_TIMEOUT": "7"}, 7)):
        gpus.device_plane(Settings.from_env({"HOROVOD_START_TIMEOUT": "3", **environ}), 0)
        assert given["timeout_s"] == seconds


def test_routes() -> None:
    assert gpus.routes_of(Settings()) == [AUTO] * 7
    settings = Settings.from_env({"HOROVOD_GPU_OPERATIONS": "nccl", "HOROVOD_GPU_ALLGATHER": "MPI"})
    assert gpus.routes_of(settings) == [NCCL, HOST, NCCL, NCCL, NCCL, NCCL, NCCL]
    only = Settings(gpu_reducescatter="nccl")
    assert gpus.routes_of(only) == [AUTO, AUTO, AUTO, AUTO, AUTO, NCCL, AUTO]


def test_which_collectives_are_hierarchical() -> None:
    none = [False] * 7
    assert gpus.hierarchical_kinds(Settings()) == none
    for variable in ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_TORUS_ALLREDUCE"):
        assert gpus.hierarchical_kinds(Settings.from_env({variable: "1"})) == [True, *none[1:]]
    gather = Settings(hierarchical_allgather=True)
    assert gpus.hierarchical_kinds(gather) == [False, True, *none[2:]]


@pytest.mark.parametrize("value", ["rccl", "", "gpu"])
def test_what_is_no_way_is_refused_by_name(value: str) -> None:
    with pytest.raises(SettingError, match="expected one of auto, nccl, host"):
        Settings.from_env({"HOROVOD_GPU_BROADCAST": value})
