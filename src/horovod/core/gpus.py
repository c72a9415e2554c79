"""Finds CUDA and NCCL on this machine, and tells the engine how to use GPU memory.

Nothing is linked: the driver (libcuda.so.1) is found where the system has it, NCCL where
``HOROVOD_NCCL_HOME`` says, in the wheel that frameworks bring, or in the system. Both are loaded by
the engine, with the first tensor that is on a GPU; NCCL only if no framework has loaded it already.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.settings import Settings

if TYPE_CHECKING:
    from horovod import _native

CUDA = "libcuda.so.1"
NCCL = "libnccl.so.2"

# In the order of engine/core/collectives.h; numbered as in engine/backend/device_plane.h.
_KINDS = ("allreduce", "allgather", "broadcast", "barrier", "alltoall", "reducescatter", "join")
ROUTES = {"auto": 0, "nccl": 1, "host": 2}


def has_cuda() -> bool:
    """Whether there is a CUDA driver; it is not started."""
    return cuda_problem() is None


@cache
def cuda_problem() -> str | None:
    """Why there is no CUDA driver; None if there is one."""
    try:
        ctypes.CDLL(CUDA)
    except OSError as error:
        return str(error)
    return None


def nccl_candidates(environ: Mapping[str, str], folders: Sequence[str]) -> list[str]:
    """Paths and names of NCCL's library to try, best first; ``folders`` are those of packages.

    The last is its name alone, under which one that is already loaded is found, too.
    """
    home = environ.get("HOROVOD_NCCL_HOME")
    places = [Path(home) / lib for lib in ("lib", "lib64")] if home else []
    places += [Path(folder) / "nvidia" / "nccl" / "lib" for folder in folders if folder]
    found = [str(place / NCCL) for place in places if (place / NCCL).is_file()]
    return [*found, NCCL]


@cache
def _loaded_nccl_version() -> int:
    """The version of NCCL that the engine will take, which this loads; 0 where there is none."""
    for mode in (os.RTLD_NOLOAD, ctypes.DEFAULT_MODE):
        for candidate in nccl_candidates(os.environ, sys.path):
            try:
                get_version = ctypes.CDLL(candidate, mode).ncclGetVersion
            except (OSError, AttributeError):
                continue
            version = ctypes.c_int()
            if get_version(ctypes.byref(version)) == 0:
                return version.value
    return 0


def nccl_version() -> int:
    """The version of NCCL that GPU tensors travel with, such as 22703; 0 for none."""
    return _loaded_nccl_version() if has_cuda() else 0


def nccl_problem() -> str | None:
    """Why there is no NCCL for GPU tensors; None if there is."""
    if (problem := cuda_problem()) is not None:
        return f"no CUDA driver: {problem}"
    return None if nccl_version() else f"{NCCL} was found neither in a package nor in the system"


@cache
def _access() -> _native.GpuAccess:
    """One for all worlds: what the driver holds of a GPU is a process' own."""
    from horovod import _native

    return _native.GpuAccess(CUDA, nccl_candidates(os.environ, sys.path))


def device_plane(settings: Settings, local_rank: int) -> _native.DevicePlane | None:
    """How GPU tensors travel in a world with these settings; None without CUDA."""
    from horovod import _native

    if not has_cuda():
        return None
    return _native.DevicePlane(
        _access(),
        routes_of(settings),
        is_hierarchical=hierarchical_kinds(settings),
        streams=settings.num_nccl_streams,
        default_device=local_rank,
        timeout_s=settings.nccl_connect_timeout_s,
        nccl_host=_nccl_host(os.environ),
        may_share_gpu=os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE", "0") not in ("", "0"),
    )


def _nccl_host(environ: Mapping[str, str]) -> int:
    """A number for what NCCL takes for this host instead of its name; 0 where nothing is set."""
    host = environ.get("NCCL_HOSTID", "")
    return int.from_bytes(hashlib.sha256(host.encode()).digest()[:8], "big") if host else 0


def hierarchical_kinds(settings: Settings) -> list[bool]:
    """By kind of operation, whether NCCL runs it inside each host first, then between hosts."""
    wanted = {
        "allreduce": settings.hierarchical_allreduce or settings.torus_allreduce,
        "allgather": settings.hierarchical_allgather,
    }
    return [wanted.get(kind, False) for kind in _KINDS]


def routes_of(settings: Settings) -> list[int]:
    """By kind of operation, which way its GPU tensors go."""
    chosen = [getattr(settings, f"gpu_{kind}", "auto") for kind in _KINDS]
    return [ROUTES[settings.gpu_operations if name == "auto" else name] for name in chosen]
