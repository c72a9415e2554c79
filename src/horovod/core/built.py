"""What this installation can use, whether or not there is a world."""

from __future__ import annotations

from horovod.core import gpus
from horovod.core.base import mpi_library


def mpi_built() -> bool:
    """Whether MPI can be used: mpi4py is installed and finds an MPI library."""
    return mpi_library.is_built()


def gloo_built() -> bool:
    """Whether runs without MPI are possible: always, since the native engine replaces Gloo."""
    return True


def nccl_built() -> int:
    """Version of NCCL that can be used, such as 22703; 0 for none, or without CUDA's driver."""
    return gpus.nccl_version()


def ddl_built() -> bool:
    """Whether IBM DDL can be used; it cannot."""
    return False


def ccl_built() -> bool:
    """Whether Intel oneCCL can be used; it cannot."""
    return False


def cuda_built() -> bool:
    """Whether collectives take tensors on CUDA's GPUs: its driver is there."""
    return gpus.has_cuda()


def rocm_built() -> bool:
    """Whether collectives run on ROCm memory."""
    return False
