"""The life cycle of ``horovod.core.world`` as one object, for code that takes such an object."""

from __future__ import annotations

from typing import Any

from horovod.core import built, process_sets, tracing, world


def is_initialized() -> bool:
    """Whether ``init`` succeeded and ``shutdown`` was not called.

    A forked child answers as its parent at the fork; ``rank`` and ``size`` do, too.
    """
    return world.has_place()


class HorovodBasics:
    """Every life-cycle function as a method; all objects stand for the one world of this process.

    The arguments are not used. In the original they are the place of a native library.
    """

    def __init__(self, pkg_path: str | None = None, *args: Any) -> None:
        self._pkg_path = pkg_path

    init = staticmethod(world.init)
    shutdown = staticmethod(world.shutdown)
    is_initialized = staticmethod(is_initialized)
    rank = staticmethod(world.rank)
    size = staticmethod(world.size)
    local_rank = staticmethod(world.local_rank)
    local_size = staticmethod(world.local_size)
    cross_rank = staticmethod(world.cross_rank)
    cross_size = staticmethod(world.cross_size)
    is_homogeneous = staticmethod(world.is_homogeneous)
    mpi_threads_supported = staticmethod(world.mpi_threads_supported)
    mpi_enabled = staticmethod(world.mpi_enabled)
    mpi_built = staticmethod(built.mpi_built)
    gloo_enabled = staticmethod(world.gloo_enabled)
    gloo_built = staticmethod(built.gloo_built)
    nccl_built = staticmethod(built.nccl_built)
    ddl_built = staticmethod(built.ddl_built)
    ccl_built = staticmethod(built.ccl_built)
    cuda_built = staticmethod(built.cuda_built)
    rocm_built = staticmethod(built.rocm_built)
    start_timeline = staticmethod(tracing.start_timeline)
    stop_timeline = staticmethod(tracing.stop_timeline)

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """The ranks of every process set of this world by the set's number; 0 is all ranks."""
        return process_sets.ids_and_ranks()
