"""Messages between a worker of an elastic job and its driver, which is the launcher.

All of them go through the job's store. A worker that wants a rank in a world says that it is ready
and waits for an answer. The driver assigns ranks to all members of a world at once, or tells a
worker that the job goes on without it. Messages are JSON. Only processes that know the job's secret
can write to the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Annotated, NamedTuple

from horovod.core.base.checked import Fields, Record, between, shown
from horovod.core.base.rank_info import RankInfo, read_rank_info
from horovod.rendezvous.identity.environment import ProcessInfo, hostname_of


@dataclass(frozen=True, order=True)
class StateVersion(Record):
    """How new the state is that a worker could go back to; the larger version is newer.

    ``world`` is the last one whose state it took over, 0 if none; ``commits`` counts since then.
    """

    world: int = 0
    commits: int = 0

    @property
    def has_state(self) -> bool:
        """Whether the worker has taken part in a world, so that others can go on from it."""
        return self.world > 0


@dataclass(frozen=True)
class Ready(Record):
    """A worker asks for a rank: at its start, after a failure, or after an update.

    ``reason`` is the error that brought it here, if any; ``lost`` are workers that it has found
    dead, silent or out of reach. ``keeps_state``: all that stay have the same state, so it need not
    be sent. ``is_early``: it comes from the first ``init`` and may have much to do before it
    trains, so a provisional rank is enough. ``checkpoint`` is the file last written from its state.
    """

    message = "ready"

    state_version: StateVersion = StateVersion()
    reason: Annotated[str, shown()] = ""
    lost: tuple[int, ...] = ()
    keeps_state: bool = False
    is_early: bool = False
    checkpoint: str = ""


@dataclass(frozen=True)
class RankAssignment(Record):
    """A worker's position in a world, whose ``members`` are the workers' numbers by rank.

    ``updates`` counts those published before; newer ones concern this world. ``must_sync``: some
    member needs the state of rank 0. ``is_provisional``: the worker will probably have this
    position, and no world waits for it before it asks again. With ``removal`` the job goes on
    without the worker, and the text says why.
    """

    message = "rank assignment"

    world: int = 0
    rank_info: Annotated[RankInfo, read_rank_info] = field(default_factory=RankInfo)
    members: tuple[int, ...] = ()
    updates: int = 0
    must_sync: bool = True
    is_provisional: bool = False
    removal: Annotated[str, shown()] = ""

    @classmethod
    def read(cls, fields: Fields) -> RankAssignment:
        """See ``Record.read``; there must be a member for each rank."""
        assignment = super().read(fields)
        size = assignment.rank_info.size
        if assignment.members and len(set(assignment.members)) != size:
            raise fields.error("members", assignment.members, f"{size} workers")
        return assignment

    def process_info(self, environ: Mapping[str, str]) -> ProcessInfo:
        """The position of a process with this assignment, for ``init``."""
        return ProcessInfo.at(
            self.rank_info,
            hostname_of(environ),
            "horovodrun",
            scope=world_scope(self.world),
            is_provisional=self.is_provisional,
        )


class HostUpdate(IntFlag):
    """What happened to the set of hosts; the numbers are part of the public interface."""

    NONE = 0
    REMOVED = 1
    ADDED = 2
    MIXED = 3


@dataclass(frozen=True)
class Update(Record):
    """News for the members of a world: ``kind`` is a ``HostUpdate``; ``timestamp`` always grows."""

    message = "update"

    timestamp: int
    kind: Annotated[int, between(HostUpdate.NONE, HostUpdate.MIXED)]


class WorkerKeys(NamedTuple):
    """Keys of the store under which a worker and the driver leave messages for each other."""

    worker: int

    @property
    def all(self) -> str:
        """The prefix of all keys of this worker."""
        return f"elastic/worker/{self.worker}/"

    def ready(self, count: int) -> str:
        """The worker's ``count``-th ``Ready``, from 1."""
        return f"{self.all}ready/{count}"

    def assignment(self, count: int) -> str:
        """The answer to it, a ``RankAssignment``."""
        return f"{self.all}assignment/{count}"

    @property
    def done(self) -> str:
        """Set when the worker's training function has returned."""
        return f"{self.all}done"

    @property
    def fatal(self) -> str:
        """Set to an error that every restart would repeat: it ends the job."""
        return f"{self.all}fatal"


def read_key(key: str) -> tuple[int, str, int] | None:
    """The worker that has set ``key``, the kind and the count; None for keys of another form."""
    words = key.split("/")
    if words[:2] != ["elastic", "worker"] or len(words) < 4 or not words[2].isdecimal():
        return None
    count = words[4] if len(words) > 4 and words[4].isdecimal() else "0"
    return int(words[2]), words[3], int(count)


def update_key(count: int) -> str:
    """The job's ``count``-th ``Update``, from 1."""
    return f"elastic/update/{count}"


def world_scope(world: int) -> str:
    """Distinguishes the store keys of this world from those of others; see ``scope``."""
    return f"world{world}/"
