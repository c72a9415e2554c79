"""The world this process belongs to: one engine, shared by all framework bindings.

``init`` finds out the rank of this process, connects to the other ranks and starts the engine;
``shutdown`` ends it. Both may be repeated. While an elastic job goes on without this process,
``init`` has only a *provisional rank*, and connects when training begins, so that no rank waits for
what the program does between the two. A forked child is in no world: the engine's threads stay with
the parent. It keeps the numbers of its parent, and everything else is refused (``joining``).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from horovod.autotune import Autotuning
from horovod.autotune.knobs import Surroundings
from horovod.backends.data_plane import NATIVE
from horovod.core.assembly import MPI, World, chosen_data_plane, tuning_of, worlds_begun
from horovod.core.base import mpi_library
from horovod.core.base.malloc import keep_freed_memory
from horovod.core.base.on_error import on_error
from horovod.core.joining import Parent, check_comm, join_as, join_world, static_sets_of
from horovod.core.port import forget_failure, port
from horovod.core.position import cross_rank as cross_rank
from horovod.core.position import cross_size as cross_size
from horovod.core.position import gloo_enabled as gloo_enabled
from horovod.core.position import has_others as has_others
from horovod.core.position import has_place as has_place
from horovod.core.position import has_spare_cores as has_spare_cores
from horovod.core.position import here
from horovod.core.position import is_homogeneous as is_homogeneous
from horovod.core.position import is_initialized as is_initialized
from horovod.core.position import local_rank as local_rank
from horovod.core.position import local_size as local_size
from horovod.core.position import mpi_enabled as mpi_enabled
from horovod.core.position import rank as rank
from horovod.core.position import settings as settings
from horovod.core.position import size as size
from horovod.core.process_sets import ProcessSet, close_registry, freeze_registry
from horovod.core.uncaught import install_hook
from horovod.errors import InitError
from horovod.metrics.counters import CounterTotals
from horovod.metrics.sampling import open_sampler
from horovod.metrics.setup import Export, check_export, open_exports
from horovod.rendezvous.bootstrap import ProcessInfo
from horovod.settings import Settings, notices
from horovod.trace.failures import EXCEPTION
from horovod.trace.folders import JOB_ID

if TYPE_CHECKING:
    from horovod import _native

_log = logging.getLogger("horovod")
_abandoned: list[World] = []  # worlds of the parent, in a forked child
_lock = threading.RLock()
_hooks_installed = False
_CONFIRM_S = 60.0
_at_end: list[Callable[[_native.Engine], None]] = []
_at_fork: list[Callable[[_native.Engine, str], None]] = []
_counters = CounterTotals()
_exports: list[Export] = []  # with the sampler of a report
_autotuning = Autotuning(tuning_of)


def init(
    comm: Sequence[int] | Any | None = None, process_sets: Sequence[ProcessSet] | str | None = None
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
            differ; the text names them. Or this process was forked from one in a world.
        ValueError: ``comm`` is of another type, a communicator without MPI or several of them.
        NotImplementedError: ``process_sets`` has communicators, and ``comm`` is none.
        SettingError: (a ``ValueError``) a ``HOROVOD_*`` variable has a value that cannot be used.
    """
    with _lock:
        _refuse_to_join_if_forked()
        if is_initialized():
            return
        _install_excepthook()
        static_sets = static_sets_of(process_sets)
        settings = Settings.from_env()
        check_export(settings)
        check_comm(comm, static_sets)
        found = join_world(settings, comm, static_sets)
        if isinstance(found, World):
            _enter(found)
        else:
            here.provisional = found
            of = found.identity
            port().await_world(of.rank, of.size, of.local_rank, of.local_size)
        _install_hooks()


def init_as(identity: ProcessInfo, settings: Settings) -> None:
    """Join the world as this rank of it, whatever the environment says; for ``torch.distributed``.

    The processes meet in the store that ``bootstrap.use_store`` was given.

    Raises as ``init``.
    """
    with _lock:
        _refuse_to_join_if_forked()
        _install_excepthook()
        check_export(settings)
        _enter(join_as(identity, settings))
        _install_hooks()


def settle() -> bool:
    """Connect to the others now if ``init`` had a provisional rank; whether it had.

    Raises as ``init``.
    """
    if here.provisional is None:
        return False
    with _lock:
        while (provisional := here.provisional) is not None:
            found = join_world(provisional.settings, provisional.comm, provisional.static_sets)
            if isinstance(found, World):
                _enter(found)
                here.provisional = None
    return True


def _enter(world: World) -> None:
    from horovod import _native

    global _exports
    if world.settings.keep_memory and not keep_freed_memory():
        _log.warning("HOROVOD_KEEP_MEMORY=1: this C library has no such option")
    counts = partial(_counters.read, world.engine)
    with on_error(world.end), on_error(close_registry):
        _exports = open_exports(world.identity, world.settings, counts)
    _counters.begin()
    here.world = world
    forget_failure()
    port().attach(world.engine, world.identity.local_rank, world.identity.local_size)
    _native.watch_dump_signal(world.engine)
    sampler = open_sampler(
        world.identity, world.settings, world.data_plane_name, world.engine, counts
    )
    _exports += [] if sampler is None else [sampler]
    if world.identity.rank == 0 and worlds_begun() == 1:
        for notice in (*notices(os.environ), *world.notices()):
            _log.warning(notice)
    if world.identity.rank == 0 and world.identity.size > 1:
        around = Surroundings(world.data_plane_name == NATIVE, world.connect_set is not None)
        _autotuning.begin(world.engine, world.settings, around)


def shutdown() -> None:
    """Leave the world: pending operations fail here, later ones on all other ranks.

    Safe before ``init`` and when called twice. ``init`` works again afterwards. Does nothing in a
    forked child.
    """
    global _exports
    if here.parent is not None:
        return
    with _lock:
        if here.provisional is not None:
            port().await_none()
        world, here.world, here.provisional = here.world, None, None
        exports, _exports = _exports, []
        close_registry()
    if world is not None:
        from horovod import _native

        _native.leave_dump_signal()
        _autotuning.end()
        for export in exports:
            export.close()
        world.end()
        _counters.end(world.engine)
        port().detach(world.engine)
        for callback in _at_end:
            callback(world.engine)


def restart() -> None:
    """Leave the world and join the job's next one; blocks as ``init``, and raises as it."""
    shutdown()
    init()


def at_end(callback: Callable[[_native.Engine], None]) -> None:
    """For the bindings: ``callback`` gets the engine of every world that has been shut down."""
    _at_end.append(callback)


def at_fork(callback: Callable[[_native.Engine, str], None]) -> None:
    """``callback`` runs in forked children: with the parent's engine, and why it is refused."""
    _at_fork.append(callback)


def metrics() -> dict[str, float]:
    """What Horovod has counted in this process since it started; nothing is communicated.

    Counts go on over worlds, so they never go back. Before ``init`` they are 0. Horovod's own
    operations, such as those that agree on process sets, count like others. By name:

    - ``<kind>_operations``: submitted by this rank, for allreduce, allgather, broadcast, alltoall,
      reducescatter, barrier and join; ``<kind>_tensors`` and ``<kind>_bytes`` for the first five.
      A grouped operation is one operation with several tensors.
    - ``in_flight_operations``: under way now.
    - ``buckets``: collectives that were run, each for one operation or several;
      ``fused_tensors``: tensors that ran together with others in one.
    - ``link_bytes``: bytes of tensors that this rank has sent to other hosts, over Horovod's own
      connections.
    - ``queued_seconds``: from submission to start, summed over operations: waiting until all ranks
      had submitted, and for earlier collectives.
    - ``waited_seconds``: in the middle of collectives, for other ranks.
    - ``blocked_seconds``: threads of this program, for results.
    - ``errors``: operations that failed. ``stalls``: operations, and collectives under way, that
      waited for other ranks until the stall check's warning time. ``resets``: worlds after the
      first one.
    - ``steps``, ``step_seconds``, ``last_step_seconds``: training steps and their time. A step is
      from one submission of a named tensor to the next; it is the first name that came twice, until
      it stays away for ten steps. 0 where no name comes again.
    """
    current = here.world
    return _counters.read(None if current is None else current.engine)


def current() -> World:
    """The world of this process; for the bindings. ``ValueError`` where it is in none."""
    return here.world or here.joined()


def engine() -> _native.Engine:
    """The engine of this process; for the bindings. ``ValueError`` where it is in no world."""
    return (here.world or here.joined()).engine


def object_key() -> bytes:
    """The key of this world, for the codes of objects. ``ValueError`` where there is none."""
    return (here.world or here.joined()).object_key


def generation() -> int:
    """How many worlds this process has joined so far; tells one from the next."""
    return worlds_begun()


def confirm() -> None:
    """Wait until GPUs have finished operations that are done for the engine.

    An operation that was synchronised may still run on a GPU, and fail there. Returns at once where
    no GPU is in use, and outside of a world.

    Raises:
        HorovodInternalError: it has failed, or a rank was lost.
    """
    if here.world is not None:
        while not here.world.engine.confirm(_CONFIRM_S):
            pass


def data_plane_name() -> str:
    """What moves the data of this world, such as ``native``. ``ValueError`` before ``init``."""
    provisional = here.provisional
    if provisional is not None:
        return chosen_data_plane(provisional.identity, provisional.settings)
    return here.joined().data_plane_name


def mpi_threads_supported() -> bool:
    """Whether MPI may be called from several threads.

    Raises:
        ValueError: before ``init``, and when MPI is not in use.
    """
    name = data_plane_name()
    if name != MPI:
        raise ValueError(f"MPI is not enabled in this run; its data plane is {name}")
    return mpi_library.threads_supported()


def _refuse_to_join_if_forked() -> None:
    if here.parent is not None:
        raise InitError(f"init: {here.parent.refusal}")


def _install_hooks() -> None:
    global _hooks_installed
    if not _hooks_installed:
        _hooks_installed = True
        atexit.register(shutdown)
        os.register_at_fork(after_in_child=_abandon)


@cache
def _install_excepthook() -> None:
    install_hook(_record_exception)


def _record_exception(description: str) -> None:
    world = here.world
    if world is not None and (world.identity.size > 1 or JOB_ID in os.environ):
        world.engine.write_recording(EXCEPTION, description, "")


def _abandon() -> None:
    """In a forked child: leave the parent's world without touching what its threads may hold."""
    global _exports, _lock
    _lock = threading.RLock()
    _keep_place()
    here.provisional = None
    from horovod import _native

    _native.leave_dump_signal()
    _autotuning.abandon()
    for export in _exports:
        export.abandon()
    _exports = []
    if here.world is not None:
        here.world.engine.abandon()  # and stays attached: it refuses what plugins submit
        _abandoned.append(here.world)
        here.world = None


def _keep_place() -> None:
    """In a forked child: remember what the parent is. A fork of a forked child knows it already."""
    owner = here.world or here.provisional
    if owner is not None:
        here.parent = Parent(owner.identity, owner.pid, mpi_enabled())
        freeze_registry(here.parent.refusal)
        if here.world is not None:
            for callback in _at_fork:
                callback(here.world.engine, here.parent.refusal)
    elif here.parent is None:
        close_registry()
