"""The workers of a job and their places: who is started, who has failed and what that costs.

What follows from it for the world is the director's business; it looks at ``losses``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence

from horovod.core.base.rank_info import RankInfo
from horovod.launch.elastic import texts
from horovod.launch.elastic.policy.actions import Action, End, Say, Start
from horovod.launch.elastic.policy.capacity import Capacity
from horovod.launch.elastic.policy.failures import Ending, Failure, Penalty, penalty_for
from horovod.launch.elastic.policy.ranking import by_slot, in_rank_order, positions
from horovod.launch.elastic.policy.registry import Entry, Phase, WorkerRegistry
from horovod.launch.model.job_plan import Limits
from horovod.rendezvous.identity.elastic_messages import RankAssignment

__all__ = ["WorkerPool"]


class WorkerPool:
    """``now`` is the time of the last event and ``world`` the current world, 0 before the first.

    ``orders`` collects what is to be done, ``losses`` says which members of the world are gone, and
    ``failure`` is the first one since that world began, the likeliest cause of what comes next.
    ``endings`` are those of workers with the state since then.
    """

    def __init__(self, limits: Limits, rng: random.Random) -> None:
        self.capacity = Capacity(limits.cooldown, rng)
        self.registry = WorkerRegistry()
        self.now = -math.inf
        self.world = 0
        self.orders: list[Action] = []
        self.losses: list[str] = []
        self.endings: list[Ending] = []
        self.failure: Failure | None = None
        self._is_failure_old = False
        self._limits = limits

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
        """Who has the state, or may have it, and was not told to go."""
        told = (Phase.LEAVING, Phase.ENDING)
        return [e for e in self.registry if e.phase not in told and e.may_have_state(self.world)]

    def banned_holders(self) -> list[Entry]:
        """Who may have the state, and could go on if its host were not blacklisted."""
        capacity = self.capacity
        return [
            entry
            for entry in self.holders()
            if capacity.is_listed(entry.slot_id)
            and capacity.is_banned(self.now, entry.slot_id.hostname)
        ]

    def is_hopeless(self) -> bool:
        """Whether no host that is there can be used again, and no worker lives elsewhere."""
        capacity = self.capacity
        banned = capacity.banned_until(self.now)
        is_final = all(math.isinf(banned.get(name, 0.0)) for name in capacity.hosts)
        is_elsewhere = any(not capacity.is_listed(entry.slot_id) for entry in self.holders())
        is_blacklisted = bool(capacity.hosts) and is_final and self.failure is not None
        return is_blacklisted and not is_elsewhere and not self.usable()

    def members(self) -> list[Entry]:
        """Who is in the current world, or comes from it, by rank; also those that are removed."""
        return self.registry.members(self.world)

    def ready(self) -> list[Entry]:
        """Who waits for a seat and can have one, in the order of hosts."""
        ready = [entry for entry in self.usable() if entry.phase is Phase.READY]
        return by_slot(ready, self.capacity.order)

    def promising(self) -> list[Entry]:
        """Newcomers that can be expected soon."""
        since = self.now - self._limits.newcomer_timeout_s
        return [e for e in self.usable() if e.phase is Phase.STARTING and e.since > since]

    def say(self, text: str) -> None:
        """A line for the user."""
        self.orders.append(Say(text))

    def dismiss(self, numbers: Collection[int]) -> None:
        """These workers are told that there is no seat for them."""
        for entry in self.registry:
            if entry.number in numbers:
                entry.enter(Phase.LEAVING, self.now)

    def begin_world(self, assignments: Mapping[int, RankAssignment]) -> None:
        """The next world; who is still in the last one has no slot any more."""
        for entry in self.registry:
            if entry.phase is Phase.RUNNING:
                entry.enter(Phase.LATE, self.now)
        self.world += 1
        hostnames = set()
        for entry in self.registry:
            if (assignment := assignments.get(entry.number)) is not None:
                entry.enter(Phase.RUNNING, self.now)
                entry.world, entry.rank_info = self.world, assignment.rank_info
                hostnames.add(entry.slot_id.hostname)
        self.capacity.forget_others(self.now, hostnames)
        self.losses, self.endings = [], []
        self._is_failure_old = True

    def fill(self) -> None:
        """Start a worker in every free slot, up to the limit."""
        occupied = self.registry.occupied()
        free = [slot_id for slot_id in self.capacity.slot_ids(self.now) if slot_id not in occupied]
        if (most := self._limits.most_workers) is not None:
            free = free[: max(0, most - sum(entry.is_staying for entry in self.registry))]
        fresh = [self.registry.add(slot_id, self.now) for slot_id in free]
        if not fresh:
            return
        provisional_positions = self.provisional_positions()
        for entry in fresh:
            entry.rank_info = provisional_positions[entry.number]
            self.orders.append(Start(entry.number, entry.rank_info, entry.slot_id.slot_index))

    def provisional_positions(self) -> dict[int, RankInfo]:
        """Where workers will be if all of them come; spares have the ranks above the others."""
        everybody = by_slot(self.usable(), self.capacity.order)
        members = [entry for entry in self.members() if self.is_usable(entry)]
        ordered = in_rank_order(everybody, self.capacity.order, (members or everybody)[0])
        slots = positions([entry.slot_id for entry in ordered])
        return {entry.number: slot for entry, slot in zip(ordered, slots, strict=True)}

    def fail(
        self, entry: Entry, what: str, exit_code: int | None = None, *, is_punished: bool
    ) -> None:
        """``entry`` has failed; it is ended if it lives. Whoever was removed may fail."""
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
        consequence = ""
        if is_in_use and is_punished:
            consequence = self._ban(hostname)
        self.say(f"{_names(gone)} {what}{consequence}")
        for entry in gone:
            self.registry.remove(entry.number)
            if is_in_use and entry.is_staying:
                self._note_failure(entry, what, None)
            self._lose(entry, what)

    def end(self, entry: Entry, what: str) -> None:
        """Have a process ended, ``what`` being why it is missing."""
        self._lose(entry, what)
        entry.enter(Phase.ENDING, self.now)
        self.orders.append(End(entry.number))

    def pardon(self, needed: int) -> bool:
        """Use blacklisted hosts again where healthy workers have the state, if so many have it."""
        kept = self.banned_holders()
        if len(kept) < max(needed, 1):
            return False
        self.capacity.pardon(self.now, [entry.slot_id for entry in kept])
        self.say(texts.pardoned(kept))
        return True

    def note_leave(self, entry: Entry, what: str) -> None:
        """``entry``, which is in the current world no more, has ended by itself."""
        self.say(f"{entry.name}, which was removed, {what}")
        self._lose(entry, what)

    def _punish(self, entry: Entry) -> str:
        """Blacklist what has to be; how to say it."""
        others = [other for other in self.usable() if other is not entry]
        has_cooldown = self._limits.cooldown is not None
        penalty = penalty_for(entry, others, self.world, has_cooldown=has_cooldown)
        if penalty is Penalty.SLOT:
            until = self.capacity.rest(self.now, entry.slot_id)
            return f"; its slot is blacklisted {texts.duration(self.now, until)}"
        hostname = entry.slot_id.hostname
        consequence = self._ban(hostname)
        for other in self.registry.on(hostname):
            # Others may need the state; who has it goes when the next world has begun without it.
            may_go = other.is_staying and not other.may_have_state(self.world)
            if other is not entry and may_go:
                self.end(other, f"is ended, since {hostname} is blacklisted")
        return consequence

    def _ban(self, hostname: str) -> str:
        until = self.capacity.ban(self.now, hostname)
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


def _names(entries: Sequence[Entry]) -> str:
    return ", ".join(entry.name for entry in entries)
