"""Makes a world: the connections to other ranks, the data plane, the engine.

``world.init`` knows the rank of this process. From that and the settings ``assemble`` makes a
``World``, or nothing. ``world`` keeps the current one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horovod.backends import Backend
from horovod.backends.data_plane import (
    NATIVE,
    DataPlane,
    EngineAdapter,
    Neighbourhood,
    find_backend,
)
from horovod.core.base.cores import core_of, on_core, usable_cores
from horovod.core.base.on_error import on_error
from horovod.core.compression import LINK_FORMATS, LinkFormat
from horovod.core.gpus import device_plane
from horovod.core.process_sets import ConnectSet
from horovod.errors import HorovodInternalError, InitError
from horovod.rendezvous.base.authentication import SECRET_BYTES
from horovod.rendezvous.bootstrap import Mesh, ProcessInfo, SetLinks, job_store, meet
from horovod.rendezvous.identity.mpi import is_started_by_mpi
from horovod.rendezvous.store.client import Store
from horovod.settings import LOG_LEVELS, Settings
from horovod.trace.folders import JOB_ID, job_name
from horovod.trace.setup import TracedWorld, configure_trace
from horovod.trace.stacks import release_stacks

if TYPE_CHECKING:
    from horovod import _native

# See ``SetConnector.connect_members``.
ConnectMembers = Callable[[str, Sequence[int], Store, float], SetLinks]
# The name of MPI as a data plane.
MPI = "mpi"


@dataclass(frozen=True)
class World:
    """This process in a world. ``object_key`` is known to its ranks alone, for codes of objects.

    ``is_agreed``: all ranks proposed the same process sets.
    """

    identity: ProcessInfo
    engine: _native.Engine
    data_plane_name: str
    settings: Settings
    object_key: bytes = field(repr=False)
    connect_set: ConnectSet | None = None  # where the world spans hosts
    connect_members: ConnectMembers | None = None  # the same
    hosts: tuple[tuple[int, ...], ...] = ((0,),)  # ranks that share memory
    data_plane: DataPlane | None = None  # None: the engine's own, or a world of one
    pid: int = field(default_factory=os.getpid)  # of the process that is in it; no forked child is
    is_agreed: bool = False

    def end(self) -> None:
        """Leave the world. Operations that have not ended fail."""
        self.engine.shutdown()
        release_stacks()
        if self.data_plane is not None:
            self.data_plane.close()

    def notices(self) -> list[str]:
        """Sentences about settings of the user that have no effect in this world."""
        settings = self.settings
        chosen, level = settings.cpu_operations, settings.link_protection
        found: list[str] = []
        if chosen.lower() == MPI and self.data_plane_name == NATIVE:
            found.append(
                f"HOROVOD_CPU_OPERATIONS={chosen}: MPI has not started these processes, the native "
                "engine carries tensors (docs/migrating.md)"
            )
        elif self.data_plane is not None and level != "control":
            found.append(
                f"HOROVOD_LINK_PROTECTION={level}: tensors travel over {self.data_plane_name}, "
                "which it does not protect (docs/security.md)"
            )
        if settings.autotune_link_compression and not settings.autotune:
            found.append(
                "HOROVOD_AUTOTUNE_LINK_COMPRESSION (--autotune-link-compression) has an effect "
                "only with HOROVOD_AUTOTUNE=1 (--autotune)"
            )
        return found


class EngineError(InitError):
    """This process cannot run an engine, and would mostly fail again; the others are told."""


_generations: Counter[str] = Counter()  # worlds begun, by scope


def worlds_begun() -> int:
    """How many worlds this process has begun to assemble."""
    return _generations.total()


def assemble(identity: ProcessInfo, settings: Settings, proposal: str) -> World:
    """Meet the others and start the engine; blocks for about the start timeout at most.

    Args:
        proposal: of process sets, as ``proposal_of`` makes it.

    Raises:
        EngineError: no engine can be made here.
        InitError: ranks are missing, disagree or cannot reach each other.
    """
    from horovod import _native

    # All ranks count the worlds of a scope. The engine gets the count of all scopes, so that
    # handles of two worlds of this process differ.
    generation = _generations[identity.scope] = _generations[identity.scope] + 1
    plane_name = chosen_data_plane(identity, settings)
    backend = None if plane_name == NATIVE else find_backend(plane_name)
    if identity.size == 1:
        return _alone(identity.placed([identity.node]), settings, generation, plane_name)
    mesh = meet(
        identity,
        generation,
        _native.space_bytes(identity.size),
        settings.start_timeout_s,
        os.environ,
        settings.gloo_timeout_s,
        settings.link_protection,
        settings.link_connections,
        proposal,
    )
    identity = identity.placed(mesh.nodes)
    if backend is None:
        return _connected(identity, settings, mesh, generation, plane_name)
    with on_error(mesh.close):
        data_plane = _connect(plane_name, backend, identity, mesh, settings, generation)
    with on_error(data_plane.close):
        return _connected(identity, settings, mesh, generation, plane_name, data_plane)


def _alone(identity: ProcessInfo, settings: Settings, generation: int, plane_name: str) -> World:
    """The world of one rank."""
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
    return World(identity, engine, plane_name, settings, os.urandom(SECRET_BYTES))


def _connected(
    identity: ProcessInfo,
    settings: Settings,
    mesh: Mesh,
    generation: int,
    plane_name: str,
    data_plane: DataPlane | None = None,
) -> World:
    """The world of ranks that a mesh connects."""
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
    plane = None if data_plane is None else data_plane.world
    with on_error(mesh.close), _telling_others(config, mesh):
        configure_trace(config, settings, traced)
        core = core_of(settings.thread_affinity, identity.local_rank)
        with on_core(core):
            devices = device_plane(settings, identity.local_rank)
    with on_core(core):
        engine = _engine_of(config, mesh, identity.rank, plane, devices)
    spans_hosts = len(mesh.hosts) > 1
    return World(
        identity,
        engine,
        plane_name,
        settings,
        mesh.object_key,
        mesh.connector.connect_set if spans_hosts else None,
        mesh.connector.connect_members if spans_hosts else None,
        mesh.hosts,
        data_plane,
        is_agreed=mesh.is_agreed,
    )


def _engine_of(
    config: _native.Config,
    mesh: Mesh,
    rank: int,
    plane: EngineAdapter | None,
    devices: _native.DevicePlane | None,
) -> _native.Engine:
    """An engine over the mesh; it owns the descriptors of the mesh from now on."""
    hosts = [list(host) for host in mesh.hosts] if len(mesh.hosts) > 1 else []
    try:
        with _telling_others(config, mesh):
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
        raise (InitError if ranks else EngineError)(text, ranks=ranks) from error
    finally:
        os.close(mesh.region_fd)  # the engine has duplicated it


@contextmanager
def _telling_others(config: _native.Config, mesh: Mesh) -> Iterator[None]:
    """An error in the block ends the world of this host's ranks; others notice closed links.

    They have met this rank, and would wait for it until its process ends.
    """
    from horovod import _native

    try:
        yield
    except BaseException as error:
        with suppress(Exception):  # no memory for this, either; the first error counts
            _native.report_failed_start(config, mesh.region_fd, str(error))
        raise


def _engine_class(config: _native.Config) -> type[_native.Engine]:
    from horovod import _native

    if not config.is_debug:
        return _native.Engine
    # Here, because few worlds need it.
    from horovod.core.debugging import WatchedEngine

    return WatchedEngine


def chosen_data_plane(identity: ProcessInfo, settings: Settings) -> str:
    """What the user has chosen, but not what another program's launcher, or its image, has set.

    Such launchers always set ``gloo``, which the native engine replaces. MPI connects only
    processes that MPI has started.
    """
    chosen = settings.cpu_operations.lower()
    is_other = identity.launcher == "other"
    if is_other and (chosen == "gloo" or (chosen == MPI and not is_started_by_mpi(os.environ))):
        return NATIVE
    return chosen or (MPI if identity.launcher == "mpirun" else NATIVE)


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
    """The pids of the ranks of this host; 0 for other ranks, and for threads of this process."""
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
    config.link_format = submitted_format(settings)
    config.link_format_least_elements = settings.link_compression_min_elements
    config.link_connections = settings.link_connections
    parts = (part.strip() for part in settings.link_compression_exact.split(","))
    config.link_format_exact_parts = [part for part in parts if part]
    config.is_rounding_stochastic = settings.link_compression_rounding == "stochastic"
    config.rounding_seed = settings.link_compression_seed
    config.is_feeding_back = settings.link_compression_feedback
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
    """The part of these settings that can change while an engine runs."""
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
        link_format=LINK_FORMATS[settings.link_compression],
    )


def submitted_format(settings: Settings) -> LinkFormat:
    """How allreduces travel that ask for nothing; a format that is set is never tuned."""
    chosen = LINK_FORMATS[settings.link_compression]
    may_change = settings.autotune and bool(settings.autotune_link_compression)
    return LinkFormat.TUNED if may_change and chosen is LinkFormat.EXACT else chosen
