"""The decisions of the policy. The driver carries them out in their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from horovod.core.base.rank_info import RankInfo
from horovod.launch.model.job_plan import JobOutcome
from horovod.rendezvous.identity.elastic_messages import RankAssignment, Update


class Start(NamedTuple):
    """Start a process. ``rank_info`` is provisional; ``slot_index`` counts its host's slots."""

    worker: int
    rank_info: RankInfo
    slot_index: int


class End(NamedTuple):
    """End a process: SIGTERM first and SIGKILL after the usual grace, ``is_urgent``: at once."""

    worker: int
    is_urgent: bool = False


class Abandon(NamedTuple):
    """Ranks that still wait for members of ``world`` get ``reason`` as an error."""

    world: int
    reason: str


class Assign(NamedTuple):
    """Answers to workers that are ready: ranks in ``world``, or their removal."""

    world: int
    assignments: Mapping[int, RankAssignment]


class Publish(NamedTuple):
    """Tell the members of the current world."""

    update: Update


class Say(NamedTuple):
    """A line for the user."""

    text: str


class Finish(NamedTuple):
    """The job is over: end all that is left."""

    outcome: JobOutcome


Action: TypeAlias = Start | End | Abandon | Assign | Publish | Say | Finish
