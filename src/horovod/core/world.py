"""The world this process belongs to: one engine, shared by all framework bindings.

``init`` finds out who this process is, meets the other ranks and starts the engine; ``shutdown``
ends it. Both may be repeated. While an elastic job goes on without this process, ``init`` has only
a *forecast* of its place, and meets the others when training begins, so that nobody waits for what
comes between. After a fork the child is outside of any world: the engine's threads stay with the
parent.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from horovod.autotune import Autotuning
from horovod.autotune.knobs import Surroundings
from horovod.backends.data_plane import NATIVE
from horovod.core import gpus
from horovod.core.assembly import MPI, World, assemble, tuning_of, usable_cores, worlds_begun
from horovod.core.base import mpi_library
from horovod.core.base.mpi_library import is_communicator
from horovod.core.process_sets import ProcessSet, close_registry, open_registry
from horovod.errors import HorovodInternalError, InitError
from horovod.metrics.counters import CounterTotals
from horovod.metrics.sampling import Sampler, open_sampler
from horovod.metrics.setup import Export, check_export, open_export
from horovod.rendezvous.bootstrap import ProcessInfo, recognise, this_client
from horovod.settings import Settings, notices

if TYPE_CHECKING:
    from horovod import _native

__all__ = [
    "at_end",
    "ccl_built",
    "confirm",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "data_plane_name",
    "ddl_built",
    "engine",
    "generation",
    "gloo_built",
    "gloo_enabled",
    "has_spare_cores",
    "init",
    "is_homogeneous",
    "is_initialized",
    "keep_failure",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "object_key",
    "port_address",
    "rank",
    "restart",
    "rethrow_interrupt",
    "rocm_built",
    "settings",
    "settle",
    "shutdown",
    "size",
    "take_failure",
]


@dataclass(frozen=True)
class _ProvisionalRank:
    """A place that this process will probably have, and what ``init`` was called with."""

    identity: ProcessInfo
    settings: Settings
    comm: Any
    static_sets: Sequence[ProcessSet]


_log = logging.getLogger("horovod")
_world: World | None = None
_forecast: _ProvisionalRank | None = None  # in place of a world
_abandoned: list[World] = []  # worlds of the parent, in a forked child
_lock = threading.RLock()
_hooks_installed = False
_CONFIRM_S = 60.0
_at_end: list[Callable[[_native.Engine], None]] = []
_tally = CounterTotals()
_export: Export | None = None
_sampler: Sampler | None = None
_autotuning = Autotuning(tuning_of)
_kept_failure: Exception | None = None


def init(
    comm: Sequence[int] | Any | None = None,
    process_sets: Sequence[ProcessSet] | str | None = None,
) -> None:
    """Join the world of this job; a no-op when initialised already.

    Blocks until all ranks called it, at most ``HOROVOD_START_TIMEOUT`` (30 s). Started neither by
    ``horovodrun`` nor by ``torchrun`` or ``mpirun``, the process is a world of one. The environment
    is read here, so ``HOROVOD_*`` variables may be set just before.

    Args:
        comm: None for all processes of the job, or a list of their ranks: these alone are the
            world, renumbered in the order of the list. The same list on every one of them. Where
            MPI started the processes, an mpi4py communicator, which stays the program's own.
        process_sets: sets to register, the same on every rank; or ``"dynamic"``: sets may be added
            and removed later, as with ``HOROVOD_DYNAMIC_PROCESS_SETS=1``.

    Raises:
        InitError: (a ``ValueError``) ranks are missing or refused, or process sets cannot be or
            differ; the text names them.
        ValueError: ``comm`` is of another type, a communicator without MPI or several of them.
        NotImplementedError: ``process_sets`` has communicators, and ``comm`` is none.
        SettingError: (a ``ValueError``) a ``HOROVOD_*`` variable has a value that cannot be used.
    """
    global _forecast
    with _lock:
        if is_initialized():
            return
        static_sets = _static_sets(process_sets)
        settings = Settings.from_env()
        check_export(settings)
        _check_comm(comm, static_sets)
        found = _join(settings, comm, static_sets)
        if isinstance(found, World):
            _enter(found)
        else:
            _forecast = found
        _install_hooks()


def settle() -> bool:
    """Meet the others now if ``init`` only had a forecast; whether that was wrong.

    Raises as ``init``.
    """
    foreseen = _forecast
    if foreseen is None:
        return False
    found = _settled().identity
    return (found.rank, found.size) != (foreseen.identity.rank, foreseen.identity.size)


def _settled() -> World:
    global _forecast
    with _lock:
        while _forecast is not None:
            foreseen = _forecast
            found = _join(foreseen.settings, foreseen.comm, foreseen.static_sets)
            if isinstance(found, World):
                _enter(found)
                _forecast = None
        return _current()


def _enter(world: World) -> None:
    from horovod import _native

    global _world, _export, _sampler, _kept_failure
    try:
        _export = open_export(world.identity, world.settings, metrics)
    except BaseException:
        close_registry()
        world.end()
        raise
    _tally.begin()
    _world = world
    _kept_failure = None
    _port().attach(world.engine, world.identity.local_rank, world.identity.local_size)
    _native.watch_dump_signal(world.engine)
    _sampler = open_sampler(
        world.identity,
        world.settings,
        world.data_plane_name,
        world.engine,
        partial(_tally.read, world.engine),
    )
    if world.identity.rank == 0 and worlds_begun() == 1:
        for notice in (*notices(os.environ), *world.notices()):
            _log.warning(notice)
    if world.identity.rank == 0 and world.identity.size > 1:
        around = Surroundings(world.data_plane_name == NATIVE, world.connect_set is not None)
        _autotuning.begin(world.engine, world.settings, around)


def _join(
    settings: Settings, comm: Sequence[int] | Any | None, static_sets: Sequence[ProcessSet]
) -> World | _ProvisionalRank:
    """A world, complete. In an elastic job, one that breaks in the making is followed by another.

    The driver ends that when it leads nowhere.
    """
    client = this_client(os.environ)
    while True:
        identity = recognise(
            os.environ,
            settings.start_timeout_s,
            comm,
            by_mpi=settings.cpu_operations.lower() == MPI,
            mpi_threads=not settings.mpi_threads_disable,
        )
        if identity.is_provisional:
            return _ProvisionalRank(identity, settings, comm, static_sets)
        try:
            return _complete(assemble(identity, settings), settings, comm, static_sets)
        except (InitError, HorovodInternalError) as error:
            if client is None:
                raise
            client.note_failure(error)


def _complete(
    world: World,
    settings: Settings,
    comm: Sequence[int] | Any | None,
    static_sets: Sequence[ProcessSet],
) -> World:
    """``world`` with its process sets, which all ranks register together."""
    try:
        open_registry(
            world.engine,
            world.object_key,
            world.identity.rank,
            world.identity.size,
            static_sets,
            settings.dynamic_process_sets,
            world.connect_set,
            world.data_plane,
            comm if is_communicator(comm) else None,
        )
    except BaseException:
        world.end()
        raise
    return world


def shutdown() -> None:
    """Leave the world: pending operations fail here, later ones on all other ranks.

    Safe before ``init`` and when called twice. ``init`` works again afterwards.
    """
    global _world, _forecast, _export, _sampler
    with _lock:
        world, _world, _forecast = _world, None, None
        export, _export = _export, None
        sampler, _sampler = _sampler, None
        close_registry()
    if export is not None:
        export.close()
    if world is not None:
        from horovod import _native

        _native.leave_dump_signal()
        _autotuning.end()
        if sampler is not None:
            sampler.close()
        world.end()
        _tally.end(world.engine)
        _port().detach(world.engine)
        for callback in _at_end:
            callback(world.engine)


def restart() -> None:
    """Leave the world and join the job's next one; blocks as ``init``, and raises as it."""
    shutdown()
    init()


def at_end(callback: Callable[[_native.Engine], None]) -> None:
    """For the bindings: ``callback`` gets the engine of every world that has been shut down."""
    _at_end.append(callback)


def is_initialized() -> bool:
    """Whether this process is in a world: ``init`` succeeded and ``shutdown`` was not called."""
    return _world is not None or _forecast is not None


def settings() -> Settings:
    """What ``init`` read from the environment. ``ValueError`` before ``init``."""
    return _forecast.settings if _forecast is not None else _current().settings


def metrics() -> dict[str, float]:
    """What this process has counted in all its worlds; see ``counters.metrics``."""
    current = _world
    return _tally.read(None if current is None else current.engine)


def engine() -> _native.Engine:
    """The engine of this process; for the bindings. ``ValueError`` before ``init``."""
    return (_world or _settled()).engine


def object_key() -> bytes:
    """What only ranks of this world know, for the codes of objects. ``ValueError`` before ``init``.

    Meets the others first if ``init`` only had a forecast.
    """
    return (_world or _settled()).object_key


def has_spare_cores() -> bool:
    """Whether there are more cores here than ranks. ``ValueError`` before ``init``."""
    if _forecast is not None:
        return usable_cores() > _forecast.identity.local_size
    return _current().engine.has_spare_cores


@cache
def _port() -> _native.Port:
    """The one of this process. It is never replaced: plugins of frameworks keep its address."""
    from horovod import _native

    return _native.Port()


def port_address() -> int:
    """Where native plugins of this build find the engine of the current world; never changes."""
    return _port().address


def rethrow_interrupt() -> None:
    """For a binding whose plugin gave up a wait: raise what a signal handler raised in it."""
    _port().rethrow()


def keep_failure(error: Exception) -> None:
    """For a binding: a framework passes on no more than the text of ``error``."""
    global _kept_failure
    _kept_failure = error


def take_failure() -> Exception | None:
    """The last error in this world of which a framework got only the text, once; None if none."""
    global _kept_failure
    failure, _kept_failure = _kept_failure, None
    return _port().take_failure() or failure


def generation() -> int:
    """How many worlds this process has joined so far; tells one from the next."""
    return worlds_begun()


def confirm() -> None:
    """Wait until GPUs have done what is over for the engine; at once where none is in use.

    What was synchronised may still be under way there, and fail. Outside of a world: nothing.

    Raises:
        HorovodInternalError: it has failed, or a rank was lost.
    """
    if _world is not None:
        while not _world.engine.confirm(_CONFIRM_S):
            pass


def rank() -> int:
    """Number of this process in the world, from 0. ``ValueError`` before ``init``."""
    return _identity().rank


def size() -> int:
    """Number of processes in the world. ``ValueError`` before ``init``."""
    return _identity().size


def local_rank() -> int:
    """Number of this process on its host, from 0. ``ValueError`` before ``init``."""
    return _identity().local_rank


def local_size() -> int:
    """Number of processes on this host. ``ValueError`` before ``init``."""
    return _identity().local_size


def cross_rank() -> int:
    """Number of this host among those that have this local rank. ``ValueError`` before ``init``."""
    return _identity().cross_rank


def cross_size() -> int:
    """Number of hosts that have this local rank. ``ValueError`` before ``init``."""
    return _identity().cross_size


def is_homogeneous() -> bool:
    """Whether every host runs the same number of processes. ``ValueError`` before ``init``."""
    identity = _identity()
    return identity.local_size * identity.cross_size == identity.size


def data_plane_name() -> str:
    """What moves the data of this world, such as ``native``. ``ValueError`` before ``init``."""
    return _settled().data_plane_name


def mpi_threads_supported() -> bool:
    """Whether MPI may be called from several threads.

    Raises:
        ValueError: before ``init``, and when MPI is not in use.
    """
    name = _settled().data_plane_name
    if name != MPI:
        raise ValueError(f"MPI is not enabled in this run; its data plane is {name}")
    return mpi_library.threads_supported()


def mpi_enabled() -> bool:
    """Whether the data of this run goes over MPI; before ``init``, whether it is going to."""
    if _world is not None:
        return _world.data_plane_name == MPI
    return os.environ.get("HOROVOD_CPU_OPERATIONS", "").lower() == MPI


def mpi_built() -> bool:
    """Whether MPI can be used: mpi4py is installed and finds an MPI library."""
    return mpi_library.is_built()


def gloo_enabled() -> bool:
    """Whether this run does without MPI, on the native engine, Gloo or another data plane."""
    return not mpi_enabled()


def gloo_built() -> bool:
    """Whether runs without MPI are possible: true, the native engine stands where Gloo stood."""
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


def _identity() -> ProcessInfo:
    return _forecast.identity if _forecast is not None else _current().identity


def _current() -> World:
    if _world is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _world


def _static_sets(process_sets: Sequence[ProcessSet] | str | None) -> Sequence[ProcessSet]:
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f"init: process_sets={process_sets!r}: expected 'dynamic' or a list of ProcessSet"
            )
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        return []
    if isinstance(process_sets, ProcessSet):
        raise ValueError(f"init: process_sets: expected a list, found {process_sets}")
    static_sets = list(process_sets or [])
    for entry in static_sets:
        if not isinstance(entry, ProcessSet):
            raise ValueError(f"init: process_sets: expected ProcessSet objects, found {entry!r}")
    return static_sets


def _check_comm(comm: Any, static_sets: Sequence[ProcessSet]) -> None:
    if is_communicator(comm):
        return
    if any(process_set.mpi_comm is not None for process_set in static_sets):
        raise NotImplementedError(
            "init: process sets of mpi4py communicators need a communicator as comm, too"
        )
    if comm is None:
        return
    if not isinstance(comm, (list, tuple, range)):
        raise ValueError(f"Invalid type of argument comm: expected a list of ranks, found {comm!r}")
    if any(map(is_communicator, comm)):
        raise ValueError(
            "init: comm takes one communicator; give the others as process_sets=[ProcessSet(comm)]"
        )
    if not all(isinstance(rank, int) for rank in comm):
        raise ValueError(f"Invalid type of argument comm: expected a list of ranks, found {comm!r}")


def _install_hooks() -> None:
    global _hooks_installed
    if not _hooks_installed:
        _hooks_installed = True
        atexit.register(shutdown)
        os.register_at_fork(after_in_child=_abandon)


def _abandon() -> None:
    """In a forked child: forget the parent's world without touching what its threads may hold."""
    global _world, _forecast, _export, _sampler, _lock
    _lock = threading.RLock()
    _forecast = None
    close_registry()
    from horovod import _native

    _native.leave_dump_signal()
    _autotuning.abandon()
    if _export is not None:
        _export.abandon()
        _export = None
    if _sampler is not None:
        _sampler.abandon()
        _sampler = None
    if _world is not None:
        _world.engine.abandon()  # and stays attached: it refuses what plugins submit
        _abandoned.append(_world)
        _world = None
