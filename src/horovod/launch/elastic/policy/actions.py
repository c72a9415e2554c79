"""The decisions of the policy. The driver carries them out in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from horovod.core.base.rank_info import RankInfo
from horovod.launch.model.job_plan import JobOutcome
from horovod.rendezvous.identity.elastic_messages import RankAssignment, Update


@dataclass(frozen=True)
class Start:
    """Start a process. ``rank_info`` is provisional; ``slot_index`` counts its host's slots."""

    worker: int
    rank_info: RankInfo
    slot_index: int


@dataclass(frozen=True)
class End:
    """End a process: SIGTERM first and SIGKILL after the usual grace, ``is_urgent``: at once."""

    worker: int
    is_urgent: bool = False


@dataclass(frozen=True)
class Abandon:
    """Ranks that still wait for members of ``world`` get ``reason`` as an error."""

    world: int
    reason: str


@dataclass(frozen=True)
class Assign:
    """Answers to workers that are ready: ranks in ``world``, or their removal."""

    world: int
    assignments: Mapping[int, RankAssignment]


@dataclass(frozen=True)
class Publish:
    """Tell the members of the current world."""

    update: Update


@dataclass(frozen=True)
class Say:
    """A line for the user."""

    text: str


@dataclass(frozen=True)
class Finish:
    """The job is over: end all that is left."""

    outcome: JobOutcome


Action: TypeAlias = Start | End | Abandon | Assign | Publish | Say | Finish
