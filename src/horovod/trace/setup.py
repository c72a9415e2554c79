"""Configures the flight recorder of a world."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from horovod import __version__
from horovod.settings import Settings, environment_of
from horovod.trace.folders import engine_path, folder_of, timeline_of_world
from horovod.trace.presence import own_presence
from horovod.trace.stacks import prepare_stacks
from horovod.trace.world_facts import system_name

if TYPE_CHECKING:
    from horovod import _native

DYNAMIC = "DYNAMIC"  # the timeline's name if the program starts it
_MIB = 1024 * 1024


class TracedWorld(NamedTuple):
    """A world for the flight recorder: its job, its number there, and the ranks of each host.

    ``number`` is the same on all ranks and unique in the job. ``is_job``: a user may look for the
    job, also after it has ended without an error.
    """

    job: str
    number: str = "1"
    hosts: Sequence[Sequence[int]] = ((0,),)
    data_plane: str = "native"
    is_job: bool = False


def configure_trace(config: _native.Config, settings: Settings, world: TracedWorld) -> None:
    """Set ``config.trace``; ``config`` must have the ranks' names already."""
    from horovod import _native

    trace = config.trace
    timeline = settings.timeline
    trace.events = settings.recorder_events
    if timeline and not trace.events:
        trace.events = Settings().recorder_events  # the timeline is made of events
    trace.is_chosen_folder = bool(settings.recorder_dir)
    trace.folder = engine_path(folder_of(settings.recorder_dir))
    trace.job = world.job
    trace.generation = config.generation
    description = _description(config, settings, world)
    trace.world = json.dumps(description)
    if world.is_job:
        name = config.peer_names[config.rank]
        trace.presence = own_presence(config.rank, name, description, _native.request_signal())
    is_at_once = timeline not in ("", DYNAMIC)
    path = timeline_of_world(timeline, world.number) if is_at_once else ""
    trace.timeline_path = engine_path(path)
    trace.timeline_mark_cycles = settings.timeline_mark_cycles
    trace.timeline_max_bytes = settings.timeline_max_mb * _MIB
    trace.data_plane = world.data_plane
    if trace.events:
        trace.stack_signal, trace.stack_fd = prepare_stacks()


def _description(
    config: _native.Config, settings: Settings, world: TracedWorld
) -> dict[str, object]:
    """The description of the world in every recording, as JSON."""
    return {
        "job": world.job,
        "world": world.number,
        "size": config.size,
        "generation": config.generation,
        "ranks": config.peer_names,
        "hosts": [list(host) for host in world.hosts],
        "cores": config.usable_cores,
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
        "data_plane": world.data_plane,
        "settings": environment_of(settings.changed()),
        "horovod": __version__,
        "python": platform.python_version(),
        "system": system_name(),
    }
