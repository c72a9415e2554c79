"""The world this process belongs to: one engine, shared by all framework bindings.

``init`` finds out who this process is, meets the other ranks and starts the engine; ``shutdown``
ends it. Both may be repeated. After a fork the child is outside of any world: the engine's threads
stay with the parent.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod import _native, mpi_library
from horovod.affinity import core_of, on_core
from horovod.backends import Backend
from horovod.backends.plane import NATIVE, DataPlane, Neighbourhood, find_backend
from horovod.errors import InitError
from horovod.mpi_library import is_communicator
from horovod.process_sets import ConnectSet, ProcessSet, close_registry, open_registry
from horovod.rendezvous import Identity, Mesh, job_store, meet, recognise
from horovod.settings import LOG_LEVELS, Settings
from horovod.trace.setup import configure_trace, job_name
from horovod.trace.stacks import release_stacks

__all__ = [
    "at_end",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "data_plane_name",
    "ddl_built",
    "engine",
    "generation",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "port_address",
    "rank",
    "rethrow_interrupt",
    "rocm_built",
    "settings",
    "shutdown",
    "size",
]

# The name of MPI as a data plane.
_MPI = "mpi"


@dataclass(frozen=True)
class _World:
    identity: Identity
    engine: _native.Engine
    data_plane_name: str
    settings: Settings
    connect_set: ConnectSet | None = None  # where the world spans hosts
    data_plane: DataPlane | None = None  # None: the engine's own, or a world of one

    def end(self) -> None:
        self.engine.shutdown()
        release_stacks()
        if self.data_plane is not None:
            self.data_plane.close()


_world: _World | None = None
_abandoned: list[_World] = []  # worlds of the parent, in a forked child
_generations: Counter[str] = Counter()  # worlds begun, by scope
_lock = threading.RLock()
_hooks_installed = False
_at_end: list[Callable[[_native.Engine], None]] = []
_port = _native.Port()  # never replaced: plugins of frameworks keep its address


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
    global _world
    with _lock:
        if _world is not None:
            return
        static_sets = _static_sets(process_sets)
        settings = Settings.from_env()
        _check_comm(comm, static_sets)
        identity = recognise(
            os.environ,
            settings.start_timeout_s,
            comm,
            by_mpi=settings.cpu_operations.lower() == _MPI,
            mpi_threads=not settings.mpi_threads_disable,
        )
        world = _begin(identity, settings)
        try:
            open_registry(
                world.engine,
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
        _world = world
        _port.attach(world.engine, identity.local_rank, identity.local_size)
        _native.watch_dump_signal(world.engine)
        _install_hooks()


def shutdown() -> None:
    """Leave the world: pending operations fail here, later ones on all other ranks.

    Safe before ``init`` and when called twice. ``init`` works again afterwards.
    """
    global _world
    with _lock:
        world, _world = _world, None
        close_registry()
    if world is not None:
        _native.leave_dump_signal()
        world.end()
        _port.detach(world.engine)
        for callback in _at_end:
            callback(world.engine)


def at_end(callback: Callable[[_native.Engine], None]) -> None:
    """For the bindings: ``callback`` gets the engine of every world that has been shut down."""
    _at_end.append(callback)


def is_initialized() -> bool:
    """Whether this process is in a world: ``init`` succeeded and ``shutdown`` was not called."""
    return _world is not None


def settings() -> Settings:
    """What ``init`` read from the environment. ``ValueError`` before ``init``."""
    return _current().settings


def engine() -> _native.Engine:
    """The engine of this process; for the bindings. ``ValueError`` before ``init``."""
    return (_world or _current()).engine


def port_address() -> int:
    """Where native plugins of this build find the engine of the current world; never changes."""
    return _port.address


def rethrow_interrupt() -> None:
    """For a binding whose plugin gave up a wait: raise what a signal handler raised in it."""
    _port.rethrow()


def generation() -> int:
    """How many worlds this process has joined so far; tells one from the next."""
    return _generations.total()


def rank() -> int:
    """Number of this process in the world, from 0. ``ValueError`` before ``init``."""
    return _current().identity.rank


def size() -> int:
    """Number of processes in the world. ``ValueError`` before ``init``."""
    return _current().identity.size


def local_rank() -> int:
    """Number of this process on its host, from 0. ``ValueError`` before ``init``."""
    return _current().identity.local_rank


def local_size() -> int:
    """Number of processes on this host. ``ValueError`` before ``init``."""
    return _current().identity.local_size


def cross_rank() -> int:
    """Number of this host among those that have this local rank. ``ValueError`` before ``init``."""
    return _current().identity.cross_rank


def cross_size() -> int:
    """Number of hosts that have this local rank. ``ValueError`` before ``init``."""
    return _current().identity.cross_size


def is_homogeneous() -> bool:
    """Whether every host runs the same number of processes. ``ValueError`` before ``init``."""
    identity = _current().identity
    return identity.local_size * identity.cross_size == identity.size


def data_plane_name() -> str:
    """What moves the data of this world, such as ``native``. ``ValueError`` before ``init``."""
    return _current().data_plane_name


def mpi_threads_supported() -> bool:
    """Whether MPI may be called from several threads.

    Raises:
        ValueError: before ``init``, and when MPI is not in use.
    """
    name = _current().data_plane_name
    if name != _MPI:
        raise ValueError(f"MPI is not enabled in this run; its data plane is {name}")
    return mpi_library.threads_supported()


def mpi_enabled() -> bool:
    """Whether the data of this run goes over MPI; before ``init``, whether it is going to."""
    if _world is not None:
        return _world.data_plane_name == _MPI
    return os.environ.get("HOROVOD_CPU_OPERATIONS", "").lower() == _MPI


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
    """Version of NCCL that can be used, such as 21003; 0 for none."""
    return 0


def ddl_built() -> bool:
    """Whether IBM DDL can be used; it cannot."""
    return False


def ccl_built() -> bool:
    """Whether Intel oneCCL can be used; it cannot."""
    return False


def cuda_built() -> bool:
    """Whether collectives run on CUDA memory."""
    return False


def rocm_built() -> bool:
    """Whether collectives run on ROCm memory."""
    return False


def _current() -> _World:
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


def _begin(identity: Identity, settings: Settings) -> _World:
    """Meets the others, and starts the engine."""
    # Ranks count the worlds of one scope alike; handles must differ between all of a process.
    generation = _generations[identity.scope] = _generations[identity.scope] + 1
    plane_name = _chosen_data_plane(identity, settings)
    backend = None if plane_name == NATIVE else find_backend(plane_name)
    if identity.size == 1:
        identity = identity.placed([identity.node])
        config = _engine_config(identity, settings, _generations.total())
        configure_trace(config, settings, job_name(os.environ, os.getpid()), plane_name)
        with on_core(core_of(settings.thread_affinity, identity.local_rank)):
            return _World(identity, _native.Engine(config), plane_name, settings)
    region_bytes = _native.space_bytes(identity.size)
    mesh = meet(
        identity,
        generation,
        region_bytes,
        settings.start_timeout_s,
        os.environ,
        settings.gloo_timeout_s,
    )
    identity = identity.placed(mesh.nodes)
    config = _engine_config(identity, settings, _generations.total())
    config.peer_names = [
        f"rank {peer} (pid {pid} on {hostname})"
        for peer, (pid, hostname) in enumerate(zip(mesh.pids, mesh.hostnames, strict=True))
    ]
    job = job_name(os.environ, mesh.pids[0], mesh.hostnames[0])
    configure_trace(config, settings, job, plane_name)
    data_plane = None
    try:
        if backend is not None:
            data_plane = _connect(plane_name, backend, identity, mesh, settings, generation)
        carrier = None if data_plane is None else data_plane.world
    except BaseException:
        mesh.close()
        raise
    try:
        with on_core(core_of(settings.thread_affinity, identity.local_rank)):
            engine = _engine_of(config, mesh, identity.rank, carrier)
    except BaseException:
        if data_plane is not None:
            data_plane.close()
        raise
    connect_set = mesh.connect_set if len(mesh.hosts) > 1 else None
    return _World(identity, engine, plane_name, settings, connect_set, data_plane)


def _engine_of(
    config: _native.Config, mesh: Mesh, rank: int, carrier: _native.Carrier | None
) -> _native.Engine:
    """The engine takes over all descriptors of the mesh."""
    hosts = [list(host) for host in mesh.hosts] if len(mesh.hosts) > 1 else []
    try:
        return _native.Engine(
            config,
            mesh.region_fd,
            list(mesh.pidfds),
            _pids_to_watch(mesh, rank),
            carrier,
            hosts,
            list(mesh.bells),
            list(mesh.links.control),
            list(mesh.links.data),
            list(mesh.news),
        )
    except Exception as error:
        raise InitError(f"init: initialization failed: {error}") from error
    finally:
        os.close(mesh.region_fd)  # it has one of its own


def _chosen_data_plane(identity: Identity, settings: Settings) -> str:
    started_by_mpi = identity.launcher == "mpirun"
    return settings.cpu_operations.lower() or (_MPI if started_by_mpi else NATIVE)


def _connect(
    name: str,
    backend: type[Backend],
    identity: Identity,
    mesh: Mesh,
    settings: Settings,
    generation: int,
) -> DataPlane:
    neighbourhood = Neighbourhood(
        rank=identity.rank,
        size=identity.size,
        store=job_store(identity, os.environ, settings.gloo_timeout_s),
        scope=f"{identity.scope}{generation}/",
        address=mesh.address,
        timeout_s=settings.gloo_timeout_s,
    )
    return DataPlane(name, backend, neighbourhood, identity.comm)


def _pids_to_watch(mesh: Mesh, rank: int) -> list[int]:
    """Of the ranks of this host; 0 for others, and for threads of this process."""
    near = next(host for host in mesh.hosts if rank in host)
    return [
        pid if peer in near and peer != rank and pid != os.getpid() else 0
        for peer, pid in enumerate(mesh.pids)
    ]


def _engine_config(identity: Identity, settings: Settings, generation: int) -> _native.Config:
    config = _native.Config()
    config.rank = identity.rank
    config.size = identity.size
    config.generation = generation
    config.usable_cores = _usable_cores()
    config.fusion_threshold_bytes = settings.fusion_threshold_bytes
    config.fuse_groups = not settings.disable_group_fusion
    config.cache_capacity = settings.cache_capacity
    config.cycle_time_s = settings.cycle_time_ms / 1000
    config.stall_check = not settings.stall_check_disable
    config.stall_check_time_s = settings.stall_check_time_s
    config.stall_shutdown_time_s = settings.stall_shutdown_time_s
    config.log_level = LOG_LEVELS.index(settings.log_level)
    config.log_hide_time = settings.log_hide_time
    config.peer_names = [f"rank {peer}" for peer in range(identity.size)]
    return config


def _usable_cores() -> int:
    """Cores that this process may run on: its affinity, within its cgroup's CPU quota."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no quota, or another cgroup layout
        return cores


def _install_hooks() -> None:
    global _hooks_installed
    if not _hooks_installed:
        _hooks_installed = True
        atexit.register(shutdown)
        os.register_at_fork(after_in_child=_abandon)


def _abandon() -> None:
    """In a forked child: forget the parent's world without touching what its threads may hold."""
    global _world, _lock
    _lock = threading.RLock()
    close_registry()
    _native.leave_dump_signal()
    if _world is not None:
        _world.engine.abandon()  # and stays attached: it refuses what plugins submit
        _abandoned.append(_world)
        _world = None
