"""Whole jobs on a GPU: over NCCL, CUDA IPC and host memory, ordered by streams, and failing."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_jobs import run_worker, succeed


@pytest.mark.usefixtures("nccl")
def test_one_rank_over_nccl() -> None:
    err = succeed(1, "collectives", HOROVOD_GPU_OPERATIONS="nccl")
    assert "host memory" not in err


@pytest.mark.usefixtures("nccl", "two_gpus")
def test_two_gpus_over_nccl() -> None:
    err = succeed(2, "collectives", "own", HOROVOD_GPU_OPERATIONS="nccl")
    assert "host memory" not in err


@pytest.mark.usefixtures("gpu")
def test_two_ranks_on_one_gpu_over_ipc() -> None:
    err = succeed(2, "collectives")
    assert err.count("share one GPU; there are more ranks than GPUs") == 1
    assert err.count("GPU tensors travel over CUDA IPC: ") == 1, err


@pytest.mark.usefixtures("gpu")
def test_through_host_memory_on_demand() -> None:
    succeed(2, "collectives", HOROVOD_GPU_OPERATIONS="host")


@pytest.mark.usefixtures("nccl")
def test_no_thread_waits_for_a_busy_stream() -> None:
    succeed(1, "ordering", HOROVOD_GPU_OPERATIONS="nccl")


@pytest.mark.usefixtures("gpu")
def test_a_busy_stream_comes_first_through_host_memory() -> None:
    succeed(2, "ordering", HOROVOD_GPU_OPERATIONS="host")


@pytest.mark.usefixtures("gpu")
def test_a_busy_stream_comes_first_over_ipc() -> None:
    succeed(2, "ordering")


@pytest.mark.usefixtures("tensorflow_gpu")
@pytest.mark.parametrize("ranks", [1, 2])
def test_functions_that_xla_compiles_for_tensorflow(ranks: int) -> None:
    succeed(ranks, "tensorflow_collectives", HOROVOD_ENABLE_XLA_OPS="1")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("ranks", [1, 2])
def test_training(ranks: int) -> None:
    succeed(ranks, "training")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("way", ["auto", "host"])
def test_a_lost_rank_ends_a_collective_of_ranks_on_one_gpu(way: str, tmp_path: Path) -> None:
    status, out, err = run_worker(2, "lost_rank", str(tmp_path), HOROVOD_GPU_OPERATIONS=way)
    assert status != 0
    assert "rank 0 goes on after HorovodInternalError" in out, out + err


@pytest.mark.usefixtures("nccl", "two_gpus")
def test_a_lost_rank_ends_a_collective_that_runs_on_the_gpu(tmp_path: Path) -> None:
    words = (str(tmp_path), "own")
    status, out, err = run_worker(2, "lost_rank", *words, HOROVOD_GPU_OPERATIONS="nccl")
    assert status != 0
    assert "rank 0 goes on after HorovodInternalError" in out, out + err
