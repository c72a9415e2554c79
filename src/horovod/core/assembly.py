"""Makes a world: the connections to other ranks, the data plane, the engine.

``world.init`` knows the rank of this process. From that and the settings ``assemble`` makes a
``World``, or nothing. ``world`` keeps the current one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.backends import Backend
from horovod.backends.data_plane import NATIVE, DataPlane, Neighbourhood, find_backend
from horovod.backends.engine_adapter import EngineAdapter
from horovod.core.base.affinity import core_of, on_core
from horovod.core.gpus import device_plane
from horovod.core.process_sets import ConnectSet
from horovod.errors import HorovodInternalError, InitError
from horovod.rendezvous.base.authentication import SECRET_BYTES
from horovod.rendezvous.bootstrap import Mesh, ProcessInfo, job_store, meet
from horovod.rendezvous.identity.mpi import is_started_by_mpi
from horovod.settings import LOG_LEVELS, Settings
from horovod.trace.folders import JOB_ID, job_name
from horovod.trace.setup import TracedWorld, configure_trace
from horovod.trace.stacks import release_stacks

if TYPE_CHECKING:
    from horovod import _native

# The name of MPI as a data plane.
MPI = "mpi"


@dataclass(frozen=True)
class World:
    """This process in a world. ``object_key`` is known to its ranks alone, for codes of objects."""

    identity: ProcessInfo
    engine: _native.Engine
    data_plane_name: str
    settings: Settings
    object_key: bytes = field(repr=False)
    connect_set: ConnectSet | None = None  # where the world spans hosts
    data_plane: DataPlane | None = None  # None: the engine's own, or a world of one

    def end(self) -> None:
        """Leave it; what is under way fails."""
        self.engine.shutdown()
        release_stacks()
        if self.data_plane is not None:
            self.data_plane.close()

    def notices(self) -> list[str]:
        """A sentence for what the user has asked for and does not get in this world."""
        chosen, level = self.settings.cpu_operations, self.settings.link_protection
        if chosen.lower() == MPI and self.data_plane_name == NATIVE:
            return [
                f"HOROVOD_CPU_OPERATIONS={chosen}: MPI has not started these processes, the native "
                "engine carries tensors (docs/migrating.md)"
            ]
        if self.data_plane is None or level == "control":
            return []
        return [
            f"HOROVOD_LINK_PROTECTION={level}: tensors travel over {self.data_plane_name}, which "
            "it does not protect (docs/security.md)"
        ]


_generations: Counter[str] = Counter()  # worlds begun, by scope


def worlds_begun() -> int:
    """How many worlds this process has begun to assemble."""
    return _generations.total()


def assemble(identity: ProcessInfo, settings: Settings) -> World:
    """Meet the others and start the engine; blocks for about the start timeout at most.

    Raises:
        InitError: ranks are missing, disagree or cannot reach each other; or no engine can be made.
    """
    from horovod import _native

    # Ranks count the worlds of one scope alike; handles must differ between all of a process.
    generation = _generations[identity.scope] = _generations[identity.scope] + 1
    plane_name = _chosen_data_plane(identity, settings)
    backend = None if plane_name == NATIVE else find_backend(plane_name)
    if identity.size == 1:
        identity = identity.placed([identity.node])
        config = _engine_config(identity, settings, _generations.total(), ["rank 0"])
        traced = TracedWorld(
            job_name(os.environ, os.getpid()),
            f"{identity.scope}{generation}",
            data_plane=plane_name,
            is_job=JOB_ID in os.environ,
        )
        configure_trace(config, settings, traced)
        with on_core(core_of(settings.thread_affinity, identity.local_rank)):
            devices = device_plane(settings, identity.local_rank)
            engine = _engine_class(config)(config, devices=devices)
            # There is no secret, and no other rank to share a key with.
            key = os.urandom(SECRET_BYTES)
            return World(identity, engine, plane_name, settings, key)
    mesh = meet(
        identity,
        generation,
        _native.space_bytes(identity.size),
        settings.start_timeout_s,
        os.environ,
        settings.gloo_timeout_s,
        settings.link_protection,
    )
    identity = identity.placed(mesh.nodes)
    data_plane = None
    try:
        if backend is not None:
            data_plane = _connect(plane_name, backend, identity, mesh, settings, generation)
    except BaseException:
        mesh.close()
        raise
    return _started(identity, settings, mesh, generation, plane_name, data_plane)


def _started(
    identity: ProcessInfo,
    settings: Settings,
    mesh: Mesh,
    generation: int,
    plane_name: str,
    data_plane: DataPlane | None,
) -> World:
    names = [
        f"rank {peer} (pid {pid} on {hostname})"
        for peer, (pid, hostname) in enumerate(zip(mesh.pids, mesh.hostnames, strict=True))
    ]
    config = _engine_config(identity, settings, _generations.total(), names)
    config.peer_hosts = list(mesh.hostnames)
    traced = TracedWorld(
        job_name(os.environ, mesh.pids[0], mesh.hostnames[0]),
        f"{identity.scope}{generation}",
        mesh.hosts,
        plane_name,
        is_job=True,
    )
    configure_trace(config, settings, traced)
    try:
        with on_core(core_of(settings.thread_affinity, identity.local_rank)):
            plane = None if data_plane is None else data_plane.world
            devices = device_plane(settings, identity.local_rank)
            engine = _engine_of(config, mesh, identity.rank, plane, devices)
    except BaseException:
        if data_plane is not None:
            data_plane.close()
        raise
    connect_set = mesh.connect_set if len(mesh.hosts) > 1 else None
    return World(
        identity,
        engine,
        plane_name,
        settings,
        mesh.object_key,
        connect_set,
        data_plane,
    )


def _engine_of(
    config: _native.Config,
    mesh: Mesh,
    rank: int,
    plane: EngineAdapter | None,
    devices: _native.DevicePlane | None,
) -> _native.Engine:
    """The engine takes over all descriptors of the mesh."""
    hosts = [list(host) for host in mesh.hosts] if len(mesh.hosts) > 1 else []
    try:
        return _engine_class(config)(
            config,
            mesh.region_fd,
            list(mesh.pidfds),
            _pids_to_watch(mesh, rank),
            plane,
            hosts,
            list(mesh.doorbells),
            list(mesh.links.control),
            list(mesh.links.data),
            list(mesh.news),
            devices,
        )
    except Exception as error:
        text = f"init: initialization failed: {error}"
        ranks = error.ranks if isinstance(error, HorovodInternalError) else ()
        raise InitError(text, ranks=ranks) from error
    finally:
        os.close(mesh.region_fd)  # it has one of its own


def _engine_class(config: _native.Config) -> type[_native.Engine]:
    from horovod import _native

    if not config.is_debug:
        return _native.Engine
    # Here, because few worlds need it.
    from horovod.core.debugging import WatchedEngine

    return WatchedEngine


def _chosen_data_plane(identity: ProcessInfo, settings: Settings) -> str:
    started_by_mpi = identity.launcher == "mpirun"
    chosen = settings.cpu_operations.lower()
    if _is_left_over(identity, chosen):
        return NATIVE
    return chosen or (MPI if started_by_mpi else NATIVE)


def _is_left_over(identity: ProcessInfo, chosen: str) -> bool:
    """Whether a launcher of others, or its image, says ``chosen`` of something that is not here.

    Such launchers always write ``gloo``, where the native engine stands now; MPI carries nothing
    between processes that it has not started.
    """
    if identity.launcher != "other":
        return False
    return chosen == "gloo" or (chosen == MPI and not is_started_by_mpi(os.environ))


def _connect(
    name: str,
    backend: type[Backend],
    identity: ProcessInfo,
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


def _engine_config(
    identity: ProcessInfo, settings: Settings, generation: int, names: Sequence[str]
) -> _native.Config:
    from horovod import _native

    config = _native.Config()
    config.rank = identity.rank
    config.size = identity.size
    config.generation = generation
    config.usable_cores = usable_cores()
    config.tuning = tuning_of(settings)
    config.fuse_groups = not settings.disable_group_fusion
    config.cache_capacity = settings.cache_capacity
    config.stall_check = not settings.stall_check_disable
    config.stall_check_time_s = settings.stall_check_time_s
    config.stall_shutdown_time_s = settings.stall_shutdown_time_s
    config.is_debug = settings.debug
    config.debug_interval = settings.debug_interval
    config.log_level = LOG_LEVELS.index(settings.log_level)
    config.log_hide_time = settings.log_hide_time
    config.peer_names = list(names)
    return config


def tuning_of(settings: Settings) -> _native.Tuning:
    """What these settings ask of an engine, as far as it can change under way."""
    cycle_time_us = round(settings.cycle_time_ms * 1000)
    if settings.cycle_time_ms > 0:
        cycle_time_us = min(max(cycle_time_us, 1), 2**32 - 1)
    from horovod import _native

    return _native.Tuning(
        fusion_threshold_bytes=settings.fusion_threshold_bytes,
        cycle_time_us=cycle_time_us,
        block_kib=settings.allreduce_block_kb,
        small_kib=settings.small_allreduce_kb,
        small_between_hosts_kib=settings.small_allreduce_between_hosts_kb,
    )


def usable_cores() -> int:
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
