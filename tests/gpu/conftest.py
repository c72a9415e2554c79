"""Tests on CUDA GPUs, with PyTorch tensors. Without a GPU they are skipped with the reason."""

from __future__ import annotations

import pytest
from gpu_jobs import missing

from horovod.core import gpus


@pytest.fixture
def gpu() -> None:
    if reason := missing(1):
        pytest.skip(reason)


@pytest.fixture
def two_gpus() -> None:
    if reason := missing(2):
        pytest.skip(reason)


@pytest.fixture
def tensorflow_gpu(gpu: None) -> None:
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    if not tf.test.is_built_with_cuda():
        pytest.skip("this TensorFlow is built without CUDA")


@pytest.fixture
def nccl(gpu: None) -> None:
    if reason := gpus.nccl_problem():
        pytest.skip(reason)
