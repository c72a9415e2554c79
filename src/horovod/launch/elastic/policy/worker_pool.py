"""The workers of a job and their slots: which are started, which have failed, what that costs.

The policy reads ``losses`` and decides what follows for the world.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from horovod.core.base.rank_info import RankInfo
from horovod.launch.elastic import texts
from horovod.launch.elastic.policy.actions import Action, Assign, End, Say, Start
from horovod.launch.elastic.policy.capacity import Capacity
from horovod.launch.elastic.policy.workers import (
    Ending,
    Entry,
    Failure,
    Phase,
    WorkerRegistry,
    by_slot,
    costs_host,
    in_rank_order,
    positions,
)
from horovod.launch.model.job_plan import Limits
from horovod.rendezvous.identity.elastic_messages import RankAssignment

# A worker that others report as lost has this long to ask for a rank.
_DOUBT_S = 1.0


class WorkerPool:
    """``now`` is the time of the last event and ``world`` the current world, 0 before the first.

    Actions are appended to ``actions``. ``losses`` says which members of the world are gone.
    ``failure`` is the first one since that world began, the likeliest cause of what comes next.
    ``endings`` are those of workers with the state since then.
    """

    def __init__(self, limits: Limits, rng: random.Random, actions: list[Action]) -> None:
        self.capacity = Capacity(limits.cooldown, rng)
        self.registry = WorkerRegistry()
        self.now = -math.inf
        self.world = 0
        self.losses: list[str] = []
        self.endings: list[Ending] = []
        self.failure: Failure | None = None
        # The time since when all members train, but none of them may join the next world.
        self.stranded_since: float | None = None
        self._is_failure_old = False
        self._limits = limits
        self._actions = actions

    @property
    def new_failure(self) -> Failure | None:
        """The first failure since the current world began."""
        return None if self._is_failure_old else self.failure

    def usable(self) -> list[Entry]:
        """Workers that can be in the next world, now or later."""
        return [entry for entry in self.registry if entry.is_staying and self.is_usable(entry)]

    def is_usable(self, entry: Entry) -> bool:
        """Whether its slot is still there and not blacklisted."""
        return self.capacity.is_usable(self.now, entry.slot_id)

    def holders(self) -> list[Entry]:
        """Workers that have the state, or may have it, and were not told to go."""
        told = (Phase.LEAVING, Phase.ENDING)
        return [e for e in self.registry if e.phase not in told and e.may_have_state(self.world)]

    def blacklisted_holders(self) -> list[Entry]:
        """Workers that may have the state, and could go on if their host were not blacklisted."""
        capacity, now = self.capacity, self.now
        listed = [entry for entry in self.holders() if capacity.is_listed(entry.slot_id)]
        return [entry for entry in listed if capacity.is_blacklisted(now, entry.hostname)]

    def is_hopeless(self) -> bool:
        """Whether no host that is there can be used again, and no worker lives elsewhere."""
        capacity = self.capacity
        ends = capacity.blacklisted_hosts(self.now)
        is_final = all(math.isinf(ends.get(name, 0.0)) for name in capacity.hosts)
        is_elsewhere = any(not capacity.is_listed(entry.slot_id) for entry in self.holders())
        is_blacklisted = bool(capacity.hosts) and is_final and self.failure is not None
        return is_blacklisted and not is_elsewhere and not self.usable()

    def members(self) -> list[Entry]:
        """The current world by rank, and workers that come from it, also removed ones."""
        world, registry = self.world, self.registry
        members = [e for e in registry if e.is_staying and world > 0 and e.world == world]
        return sorted(members, key=lambda entry: entry.rank_info.rank)

    def ready(self) -> list[Entry]:
        """Workers that wait for a rank and can have one, in the order of hosts."""
        ready = [entry for entry in self.usable() if entry.phase is Phase.READY]
        return by_slot(ready, self.capacity.order)

    def promising(self) -> list[Entry]:
        """Newcomers that can be expected soon."""
        since = self.now - self._limits.newcomer_timeout_s
        return [e for e in self.usable() if e.phase is Phase.STARTING and e.since > since]

    def say(self, text: str) -> None:
        """Print a line for the user."""
        self._actions.append(Say(text))

    def answer(self, assignments: Mapping[int, RankAssignment]) -> None:
        """Answer workers that wait for a rank."""
        self._actions.append(Assign(self.world, assignments))

    def doubt(self, numbers: Sequence[int], reporter: Entry) -> None:
        """``reporter`` names these members of the world as lost."""
        for entry in map(self.registry.get, numbers):
            if entry is None or entry.phase is not Phase.RUNNING or entry.lost_at is not None:
                continue
            if entry.world == self.world:
                entry.lost_at, entry.reported_by = self.now + _DOUBT_S, reporter.name

    def is_stranded_for(self, seconds: float) -> bool:
        """Whether, for so many seconds, no member of the world could join the next world."""
        if any(self.is_usable(entry) for entry in self.members()):
            self.stranded_since = None
            return False
        if self.stranded_since is None:
            self.stranded_since = self.now
        return self.now >= self.stranded_since + seconds

    def begin_world(self, assignments: Mapping[int, RankAssignment]) -> None:
        """Begin the next world. A worker that is still in the last one has no rank any more."""
        for entry in self.registry:
            if entry.phase is Phase.RUNNING:
                entry.enter(Phase.LATE, self.now)
        self.world += 1
        hostnames = set()
        for entry in self.registry:
            if (assignment := assignments.get(entry.number)) is not None:
                entry.enter(Phase.RUNNING, self.now)
                entry.world, entry.rank_info = self.world, assignment.rank_info
                hostnames.add(entry.hostname)
        self.capacity.forget_others(self.now, hostnames)
        self.losses, self.endings = [], []
        self._is_failure_old = True
        self.answer(assignments)

    def fill(self) -> None:
        """Start a worker in every free slot, up to the limit."""
        occupied = {entry.slot_id for entry in self.registry}
        free = [s for s in self.capacity.usable_slots(self.now) if s not in occupied]
        if self._limits.max_np is not None:
            most = 2 * self._limits.max_np  # spares included
            free = free[: max(0, most - sum(entry.is_staying for entry in self.registry))]
        fresh = [self.registry.add(slot_id, self.now) for slot_id in free]
        infos = self.provisional_positions() if fresh else {}
        for entry in fresh:
            entry.rank_info = infos[entry.number]
            self._actions.append(Start(entry.number, entry.rank_info, entry.slot_id.slot_index))

    def provisional_positions(self) -> dict[int, RankInfo]:
        """Positions of all workers if all of them come; spares have the ranks above the others."""
        workers = by_slot(self.usable(), self.capacity.order)
        members = [entry for entry in self.members() if self.is_usable(entry)]
        ordered = in_rank_order(workers, self.capacity.order, (members or workers)[0])
        infos = positions([entry.slot_id for entry in ordered])
        return {entry.number: info for entry, info in zip(ordered, infos, strict=True)}

    def fail(
        self, entry: Entry, what: str, exit_code: int | None = None, *, is_punished: bool
    ) -> None:
        """``entry`` has failed; it is ended if it lives. A removed worker may fail."""
        is_in_use = self.is_usable(entry)
        consequence = self._punish(entry) if is_in_use and is_punished else ""
        self.say(f"{entry.name} {what}{consequence}")
        if is_in_use:
            self._note_failure(entry, what, exit_code)
        if self.registry.get(entry.number) is entry:
            self.end(entry, what)
        else:
            self._lose(entry, what)

    def lose_host(self, hostname: str, text: str, *, is_punished: bool) -> None:
        """All workers of ``hostname`` are gone."""
        gone = self.registry.on(hostname)
        if not gone:
            return
        is_in_use = any(self.is_usable(entry) for entry in gone)
        what = f"was lost with {hostname}: {text}"
        consequence = self._blacklist(hostname) if is_in_use and is_punished else ""
        self.say(f"{', '.join(entry.name for entry in gone)} {what}{consequence}")
        for entry in gone:
            self.registry.remove(entry.number)
            if is_in_use and entry.is_staying:
                self._note_failure(entry, what, None)
            self._lose(entry, what)

    def end(self, entry: Entry, what: str) -> None:
        """End the process of ``entry``; ``what`` says why."""
        self._lose(entry, what)
        entry.enter(Phase.ENDING, self.now)
        self._actions.append(End(entry.number))

    def reinstate(self, needed: int) -> bool:
        """Use blacklisted hosts again if at least ``needed`` workers with the state live there."""
        kept = self.blacklisted_holders()
        if len(kept) < max(needed, 1):
            return False
        self.capacity.reinstate(self.now, [entry.slot_id for entry in kept])
        self.say(texts.reinstated(kept))
        return True

    def note_leave(self, entry: Entry, what: str) -> None:
        """``entry``, which is not in the current world any more, has ended by itself."""
        self.say(f"{entry.name}, which was removed, {what}")
        self._lose(entry, what)

    def _punish(self, entry: Entry) -> str:
        """Blacklist the host or the slot of ``entry``; the words for it."""
        others = [other for other in self.usable() if other is not entry]
        has_cooldown = self._limits.cooldown is not None
        if not costs_host(entry, others, self.world, has_cooldown=has_cooldown):
            until = self.capacity.bad_slots.add(self.now, entry.slot_id)
            return f"; its slot is blacklisted {texts.duration(self.now, until)}"
        consequence = self._blacklist(entry.hostname)
        for other in self.registry.on(entry.hostname):
            # A worker with the state leaves when the next world has begun: others may need it.
            may_go = other.is_staying and not other.may_have_state(self.world)
            if other is not entry and may_go:
                self.end(other, f"is ended, since {entry.hostname} is blacklisted")
        return consequence

    def _blacklist(self, hostname: str) -> str:
        until = self.capacity.bad_hosts.add(self.now, hostname)
        return f"; {hostname} is blacklisted {texts.duration(self.now, until)}"

    def _note_failure(self, entry: Entry, what: str, exit_code: int | None) -> None:
        if self.failure is None or self._is_failure_old:
            self.failure = Failure(entry.number, entry.name, what, entry.rank_info, exit_code)
            self._is_failure_old = False

    def _lose(self, entry: Entry, what: str) -> None:
        """``entry`` takes part in nothing any more."""
        is_late = entry.phase is Phase.LATE
        if is_late or (entry.is_staying and entry.may_have_state(self.world)):
            self.endings.append(Ending(entry.name, entry.pid, what, self.now))
        if entry.is_staying and self.world and entry.world == self.world:
            self.losses.append(f"{entry.name} {what}")
