"""A job as its policy sees it, told step by step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from horovod.launch.elastic.policy.actions import (
    Abandon,
    Action,
    Assign,
    End,
    Finish,
    Publish,
    Say,
    Start,
)
from horovod.launch.elastic.policy.policy import ElasticPolicy
from horovod.launch.model.job_plan import JobOutcome, Limits
from horovod.rendezvous.identity.elastic_messages import (
    HostUpdate,
    RankAssignment,
    Ready,
    StateVersion,
)

A = TypeVar("A", bound=Action)
TIMEOUT_S = 600.0


class Story:
    """Events and what came of them. ``new`` are the orders of the last event."""

    def __init__(
        self,
        np: int = 2,
        *,
        min_np: int | None = None,
        max_np: int | None = None,
        reset_limit: int | None = None,
        cooldown: tuple[float, float] | None = None,
    ) -> None:
        limits = Limits(np, min_np or np, max_np, reset_limit, TIMEOUT_S, cooldown)
        self.policy = ElasticPolicy(limits, random.Random(1), lambda: 1000.5)
        self.now = 0.0
        self.new: list[Action] = []
        self.where: dict[int, tuple[str, int]] = {}
        self.assignments: dict[int, RankAssignment] = {}
        self.worlds: list[Assign] = []

    # What happens.

    def hosts(self, **hosts: int) -> Story:
        return self._note(self.policy.hosts_found(self.now, hosts))

    def ready(
        self, *workers: int, state_version: StateVersion | None = None, **fields: object
    ) -> Story:
        """Workers ask; with the state of the world they were in unless it is their first time."""
        orders: list[Action] = []
        for worker in workers:
            assignment = self.assignments.get(worker)
            has = state_version or (
                StateVersion(assignment.world, 1) if assignment else StateVersion()
            )
            ready = Ready(has, **fields)  # type: ignore[arg-type]
            orders += self.policy.worker_ready(self.now, worker, ready)
        return self._note(orders)

    def updated(self, *workers: int) -> Story:
        """They come back because of an update."""
        skip = bool(self.kinds) and self.kinds[-1] == HostUpdate.REMOVED
        return self.ready(*workers, keeps_state=skip)

    def failed(self, *workers: int, lost: Sequence[int] = (), **fields: object) -> Story:
        """They come back because of an error."""
        return self.ready(*workers, reason="peer lost", lost=tuple(lost), **fields)

    def done(self, *workers: int) -> Story:
        return self._note([o for w in workers for o in self.policy.worker_done(self.now, w)])

    def exits(self, *workers: int, code: int = 1, is_complete: bool = True) -> Story:
        orders: list[Action] = []
        for worker in workers:
            orders += self.policy.worker_exited(self.now, worker, code, is_complete=is_complete)
        return self._note(orders)

    def fatal(self, worker: int, text: str) -> Story:
        return self._note(self.policy.worker_fatal(self.now, worker, text))

    def host_lost(self, hostname: str) -> Story:
        return self._note(self.policy.host_lost(self.now, hostname, "ssh ended"))

    def wait(self, seconds: float) -> Story:
        """Let time pass, with a tick at each deadline."""
        end, orders = self.now + seconds, []
        while (deadline := self.policy.deadline) is not None and deadline <= end:
            assert deadline > self.now
            self.now = deadline
            orders += self.policy.tick(self.now)
        self.now = end
        return self._note(orders)

    # What came of it.

    def _note(self, orders: list[Action]) -> Story:
        self.new = orders
        self.kinds: list[int] = getattr(self, "kinds", [])
        for order in orders:
            if isinstance(order, Start):
                self.where[order.worker] = (order.rank_info.hostname, order.slot_index)
            elif isinstance(order, Assign):
                given = {
                    w: assignment
                    for w, assignment in order.assignments.items()
                    if not (assignment.removal or assignment.is_provisional)
                }
                self.assignments.update(given)
                if given:
                    self.worlds.append(Assign(order.world, given))
            elif isinstance(order, Publish):
                self.kinds.append(order.update.kind)
        return self

    def of(self, kind: type[A]) -> list[A]:
        return [order for order in self.new if isinstance(order, kind)]

    @property
    def started(self) -> list[int]:
        return [order.worker for order in self.of(Start)]

    @property
    def ended(self) -> list[int]:
        return sorted(order.worker for order in self.of(End))

    @property
    def abandoned(self) -> list[int]:
        return [order.world for order in self.of(Abandon)]

    @property
    def published(self) -> list[int]:
        return [order.update.kind for order in self.of(Publish)]

    @property
    def removed(self) -> dict[int, str]:
        given = {
            w: assignment
            for order in self.of(Assign)
            for w, assignment in order.assignments.items()
        }
        return {
            worker: assignment.removal for worker, assignment in given.items() if assignment.removal
        }

    @property
    def provisional_assignments(self) -> dict[int, tuple[int, int]]:
        """Rank and size that newcomers will probably have."""
        given = {
            w: assignment
            for order in self.of(Assign)
            for w, assignment in order.assignments.items()
        }
        return {
            w: (assignment.rank_info.rank, assignment.rank_info.size)
            for w, assignment in given.items()
            if assignment.is_provisional
        }

    @property
    def members(self) -> tuple[int, ...]:
        """The new world's, by rank; nothing if there is none."""
        assignments = [
            s for order in self.of(Assign) for s in order.assignments.values() if not s.removal
        ]
        return assignments[0].members if assignments else ()

    @property
    def sizes(self) -> list[int]:
        return [len(world.assignments) for world in self.worlds]

    @property
    def outcome(self) -> JobOutcome | None:
        finished = self.of(Finish)
        return finished[0].outcome if finished else None

    @property
    def said(self) -> str:
        return "\n".join(order.text for order in self.of(Say))


def running(story: Story, **hosts: int) -> Story:
    """All workers of these hosts have begun the first world."""
    story.hosts(**hosts)
    story.ready(*story.started)
    assert story.members
    return story
