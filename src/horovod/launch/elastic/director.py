"""What an elastic job does next: which workers start, end, and meet in which world.

A pure state machine: events come in with the time, orders go out; it has no clock, no thread and
touches nothing. ``job`` tells it what happens and carries out what it says. Its states: *apart*
(no world: before the first one, and from a member's loss or departure until the next), *together*,
*finishing* (a training function has returned) and over.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from horovod.launch.elastic import texts
from horovod.launch.elastic.actions import (
    Abandon,
    Action,
    End,
    Finish,
    Publish,
    Say,
    Seats,
    Start,
)
from horovod.launch.elastic.capacity import Capacity
from horovod.launch.elastic.failures import Failure, Penalty, most_named, penalty_for
from horovod.launch.elastic.limits import Limits
from horovod.launch.elastic.roll import Entry, Phase, Roll
from horovod.launch.elastic.seating import best_informed, by_spot, in_rank_order, places
from horovod.launch.hosts import Slot
from horovod.launch.job_plan import JobOutcome
from horovod.launch.processes import describe_exit
from horovod.rendezvous.elastic_messages import HostUpdate, Ready, Seat, Update

__all__ = ["Director"]

# For a worker that others miss to say that it lives.
_DOUBT_S = 1.0
# Worlds in a row that end before they begin although nobody is lost.
_MOST_STALLS = 3


class Director:
    """Decides for one job. Every event returns the orders that follow from it, and no event after a
    ``Finish`` has any.

    ``now`` are monotonic seconds, ``wall_s`` gives seconds since the epoch.
    """

    def __init__(self, limits: Limits, rng: random.Random, wall_s: Callable[[], float]) -> None:
        self._limits = limits
        self._wall_s = wall_s
        self._capacity = Capacity(limits.cooldown, rng)
        self._roll = Roll()
        self._actions: list[Action] = []
        self._now = -math.inf
        self._is_over = False
        self._is_launched = False
        self._has_succeeded = False
        # The current world.
        self._world = 0
        self._must_sync = True
        self._published = HostUpdate.NONE
        # Since when there is none; what happened since then.
        self._apart_since: float | None = None
        self._has_losses = False
        self._is_short = False
        self._stalls = 0
        # For later.
        self._updates = 0
        self._timestamp = 0
        self._failure: Failure | None = None
        self._is_failure_old = False
        self._newest: tuple[int, str, Ready] | None = None

    # What happens.

    def hosts_found(self, now: float, hosts: Mapping[str, int]) -> list[Action]:
        """A good answer of the discovery: all hosts with their numbers of slots."""
        if self._begins(now):
            before = self._capacity.hosts
            self._capacity.found(hosts)
            if self._capacity.hosts != before:
                self._say_hosts()
        return self._settle()

    def worker_ready(self, now: float, worker: int, ready: Ready) -> list[Action]:
        """A worker asks for a seat."""
        entry = self._roll.get(worker)
        if self._begins(now) and entry is not None and entry.phase is not Phase.ENDING:
            if ready.is_early and self._world and self._is_usable(entry):
                self._foresee([entry])
                return self._settle()
            is_leaving = entry.phase in (Phase.SEATED, Phase.DONE) and entry.world == self._world
            entry.ready = ready
            entry.enter(Phase.READY, self._now)
            if self._newest is None or ready.standing >= self._newest[2].standing:
                self._newest = (worker, entry.name, ready)
            if is_leaving:
                self._part(f"{entry.name} has left it: {ready.reason or 'an update'}")
            if entry.world == self._world:
                self._doubt(ready.lost, entry)
        return self._settle()

    def worker_done(self, now: float, worker: int) -> list[Action]:
        """A worker's training function has returned."""
        entry = self._roll.get(worker)
        if self._begins(now) and entry is not None and entry.is_staying:
            entry.enter(Phase.DONE, self._now)
        return self._settle()

    def worker_fatal(self, now: float, worker: int, text: str) -> list[Action]:
        """A worker has met an error that would only come again."""
        entry = self._roll.get(worker)
        if self._begins(now) and entry is not None and entry.is_staying:
            self._finish(1, f"horovodrun: {entry.name} cannot go on: {text}\n", entry=entry)
        return self._settle()

    def worker_exited(self, now: float, worker: int, exit_code: int) -> list[Action]:
        """A worker's process has ended; a negative ``exit_code`` is a signal."""
        if self._begins(now) and (entry := self._roll.strike(worker)) is not None:
            if entry.is_staying:
                self._judge(entry, exit_code)
            elif entry.phase is Phase.LEAVING:
                self._say(f"{entry.name}, which was removed, {describe_exit(exit_code)}")
        return self._settle()

    def host_lost(self, now: float, hostname: str, text: str) -> list[Action]:
        """A host cannot be reached, or not any more: its workers are gone."""
        if self._begins(now) and (gone := self._roll.on(hostname)):
            for entry in gone:
                self._roll.strike(entry.number)
            what = f"was lost with {hostname}: {text}"
            is_in_use = any(self._is_usable(entry) for entry in gone)
            if is_in_use and not self._is_finishing:
                until = self._capacity.ban(self._now, hostname)
                what += f"; it is blacklisted {texts.duration(self._now, until)}"
            self._say(f"{', '.join(entry.name for entry in gone)} {what}")
            for entry in gone:
                if is_in_use and entry.is_staying:
                    self._note_failure(entry, what, None)
                self._lose(entry, what)
        return self._settle()

    def tick(self, now: float) -> list[Action]:
        """``deadline`` has come."""
        self._begins(now)
        return self._settle()

    @property
    def deadline(self) -> float | None:
        """When ``tick`` is needed unless something else happens; later than the last event."""
        if self._is_over:
            return None
        times = [self._capacity.next_change(self._now), self._out_of_patience_at()]
        for entry in self._roll:
            times += [entry.lost_at, self._overdue_at(entry)]
            if entry.phase is Phase.STARTING:
                times.append(entry.since + self._limits.start_patience_s)
        return min((t for t in times if t is not None and self._now < t < math.inf), default=None)

    @property
    def workers(self) -> dict[int, str]:
        """Where each worker is that has not ended."""
        return {entry.number: entry.spot.hostname for entry in self._roll}

    # From an event to what follows.

    def _begins(self, now: float) -> bool:
        """Whether events still count; time never goes back."""
        self._now = max(self._now, now)
        if self._world == 0 and self._apart_since is None:
            self._apart_since = self._now
        return not self._is_over

    def _settle(self) -> list[Action]:
        if not self._is_over:
            self._end_overdue()
        if not self._is_over:
            if self._is_finishing:
                self._look_for_success()
            else:
                self._start_workers()
                if self._is_apart:
                    self._unite()
                else:
                    self._spread_news()
        actions, self._actions = self._actions, []
        return actions

    @property
    def _is_apart(self) -> bool:
        return self._apart_since is not None

    @property
    def _is_finishing(self) -> bool:
        is_done = any(entry.phase is Phase.DONE for entry in self._roll)
        return is_done or self._has_succeeded

    def _end_overdue(self) -> None:
        timeout_s = self._limits.elastic_timeout_s
        for entry in self._roll:
            if entry.lost_at is not None and self._now >= entry.lost_at:
                self._fail(entry, f"does not answer, which {entry.accuser} found")
            elif (due := self._overdue_at(entry)) is not None and self._now >= due:
                if entry.phase is Phase.LEAVING:
                    self._end(entry, "")
                    continue
                if entry.phase is Phase.SEATED:
                    self._apart_since = self._now  # the wait for another one begins
                self._fail(entry, f"did not ask for a place within {timeout_s:g} s")

    def _overdue_at(self, entry: Entry) -> float | None:
        if entry.phase in (Phase.STARTING, Phase.LEAVING):
            return entry.since + self._limits.elastic_timeout_s
        is_member = entry.phase is Phase.SEATED and entry.world == self._world
        return self._out_of_patience_at() if is_member else None

    def _out_of_patience_at(self) -> float | None:
        if self._apart_since is None:
            return None
        return self._apart_since + self._limits.elastic_timeout_s

    def _look_for_success(self) -> None:
        """All that can still succeed are waited for, as in a job of fixed size."""
        busy = {Phase.DONE, Phase.SEATED}
        if self._world == 0:
            busy.add(Phase.STARTING)  # a command that asks for no seat at all
        is_busy = any(e.phase in busy and e.world == self._world for e in self._roll)
        if self._has_succeeded and not is_busy:
            self._finish(0, "")

    # How workers come and go.

    def _start_workers(self) -> None:
        spots = self._capacity.spots(self._now)
        if not self._is_launched and len(spots) < self._limits.np:
            return
        limit = self._out_of_patience_at()
        if limit is not None and self._now > limit:
            return  # who is there now has to suffice, or waiting would have no end
        self._is_launched = True
        occupied = self._roll.occupied()
        free = [spot for spot in spots if spot not in occupied]
        if (most := self._limits.most_workers) is not None:
            free = free[: max(0, most - len(self._usable()))]
        fresh = [self._roll.enrol(spot, self._now) for spot in free]
        if fresh:
            predicted = self._predicted()
            for entry in fresh:
                slot = predicted[entry.number]
                entry.rank, entry.local_rank = slot.rank, slot.local_rank
                self._actions.append(Start(entry.number, slot, entry.spot.slot_index))

    def _predicted(self) -> dict[int, Slot]:
        """Where workers will be if all of them come; spares have the ranks above the others."""
        everybody = by_spot(self._usable(), self._capacity.order)
        members = [e for e in self._roll.members(self._world) if self._is_usable(e)]
        ordered = in_rank_order(everybody, self._capacity.order, (members or everybody)[0])
        slots = places([entry.spot for entry in ordered])
        return {entry.number: slot for entry, slot in zip(ordered, slots, strict=True)}

    def _foresee(self, entries: Sequence[Entry]) -> None:
        """Let them get ready to train; until they come back they count as starting."""
        predicted = self._predicted()
        seats = {}
        for entry in entries:
            slot = predicted[entry.number]
            seats[entry.number] = replace(self._seat_at(slot, ()), is_forecast=True)
            entry.rank, entry.local_rank = slot.rank, slot.local_rank
        if seats:
            self._actions.append(Seats(self._world, seats))

    def _judge(self, entry: Entry, exit_code: int) -> None:
        """What the end of a process that nobody asked to end means."""
        # A command without elastic training says nothing before its end.
        is_alone = self._world == 0 and entry.phase is Phase.STARTING
        has_finished = entry.phase is Phase.SEATED and self._is_usable(entry)
        if exit_code:
            self._fail(entry, describe_exit(exit_code), exit_code)
        elif entry.phase is Phase.DONE or is_alone or has_finished:
            self._has_succeeded = True
        else:
            self._fail(entry, "exited with code 0 before it had a place", 0)

    def _fail(self, entry: Entry, what: str, exit_code: int | None = None) -> None:
        """``entry`` has failed; it is ended if it lives. Whoever was removed may fail."""
        is_in_use = self._is_usable(entry)
        consequence = self._punish(entry) if is_in_use and not self._is_finishing else ""
        self._say(f"{entry.name} {what}{consequence}")
        if is_in_use:
            self._note_failure(entry, what, exit_code)
        if self._roll.get(entry.number) is entry:
            self._end(entry, what)
        else:
            self._lose(entry, what)

    def _punish(self, entry: Entry) -> str:
        others = [other for other in self._usable() if other is not entry]
        has_cooldown = self._limits.cooldown is not None
        penalty = penalty_for(entry, others, self._world, has_cooldown=has_cooldown)
        if penalty is Penalty.SLOT:
            until = self._capacity.rest(self._now, entry.spot)
            return f"; its slot is blacklisted {texts.duration(self._now, until)}"
        hostname = entry.spot.hostname
        until = self._capacity.ban(self._now, hostname)
        for other in self._roll.on(hostname):
            if other is not entry and other.is_staying:
                self._end(other, f"is ended, since {hostname} is blacklisted")
        return f"; {hostname} is blacklisted {texts.duration(self._now, until)}"

    def _note_failure(self, entry: Entry, what: str, exit_code: int | None) -> None:
        """The first one since the last world began is the likeliest cause of an end."""
        if self._failure is None or self._is_failure_old:
            slot = Slot(entry.spot.hostname, entry.rank, 0, entry.local_rank, 0, 0, 0)
            self._failure = Failure(entry.name, what, slot, exit_code)
            self._is_failure_old = False

    def _end(self, entry: Entry, what: str) -> None:
        self._lose(entry, what)
        entry.enter(Phase.ENDING, self._now)
        self._actions.append(End(entry.number))

    def _lose(self, entry: Entry, what: str) -> None:
        """``entry`` takes part in nothing any more."""
        if entry.is_staying and self._world and entry.world == self._world:
            self._part(f"{entry.name} {what}")
            self._has_losses = True

    def _part(self, reason: str) -> None:
        """The current world is over, also for those who still meet."""
        if self._apart_since is None:
            self._apart_since = self._now
            self._is_short = False
            self._actions.append(Abandon(self._world, reason))

    def _doubt(self, numbers: Sequence[int], accuser: Entry) -> None:
        for number in numbers:
            entry = self._roll.get(number)
            if entry is None or entry.phase is not Phase.SEATED or entry.world != self._world:
                continue
            if entry.lost_at is None:
                entry.lost_at, entry.accuser = self._now + _DOUBT_S, accuser.name

    # Together: what its members should know.

    def _spread_news(self) -> None:
        self._remove(self._world)
        kind = self._news()
        if kind & ~self._published:
            self._published |= kind
            self._timestamp = max(int(self._wall_s()), self._timestamp + 1)
            self._updates += 1
            self._actions.append(Publish(Update(self._timestamp, int(kind))))

    def _news(self) -> HostUpdate:
        """How the next world would differ; nothing while newcomers that belong to it start."""
        members = self._roll.members(self._world)
        staying = [entry for entry in members if self._is_usable(entry)]
        others = [e for e in self._usable() if e.phase is Phase.READY]
        room = self._room(len(staying))
        if room > len(others) and self._promising():
            return HostUpdate.NONE
        kind = HostUpdate.REMOVED if len(staying) < len(members) else HostUpdate.NONE
        is_short = len(staying) < self._limits.min_np
        if (others and room > 0) or (kind and is_short):
            kind |= HostUpdate.ADDED
        return kind

    def _room(self, count: int) -> float:
        most = self._limits.max_np
        return math.inf if most is None else most - count

    def _promising(self) -> list[Entry]:
        """Newcomers that can be expected soon."""
        since = self._now - self._limits.start_patience_s
        return [e for e in self._usable() if e.phase is Phase.STARTING and e.since > since]

    def _remove(self, world: int) -> None:
        """Answer those whose slots are gone."""
        seats = {}
        for entry in self._roll:
            if entry.phase is Phase.READY and not self._is_usable(entry):
                where = f"{entry.spot.hostname}[{entry.local_rank}]"
                count = self._capacity.hosts.get(entry.spot.hostname, 0)
                why = f"its host has {count} slots now" if count else "its host is gone"
                removal = f"{where} was removed from the elastic job: {why}"
                seats[entry.number] = Seat(removal=removal)
                entry.enter(Phase.LEAVING, self._now)
        if seats:
            self._actions.append(Seats(world, seats))

    # Apart: on the way to the next world.

    def _unite(self) -> None:
        """Make the next world if all that belong to it are there; else see how long to wait."""
        if self._is_state_gone():
            self._give_up(texts.lost_state(self._world, self._found))
            return
        members = [e for e in self._roll.members(self._world) if self._is_usable(e)]
        chosen = self._chosen(members)
        is_missing = any(entry.phase is not Phase.READY for entry in members)
        if is_missing or self._should_wait(chosen):
            self._wait()
        elif not self._is_stalled(chosen):
            self._seat(chosen)

    def _chosen(self, members: Sequence[Entry]) -> list[Entry]:
        """Who is in the next world if nobody else gets ready: survivors first."""
        others = [e for e in self._usable() if e.phase is Phase.READY and e not in members]
        others = by_spot(others, self._capacity.order)
        others.sort(key=lambda entry: not entry.ready.standing.has_state)
        return [*members, *others][: self._limits.max_np]

    def _should_wait(self, chosen: Sequence[Entry]) -> bool:
        if not self._is_launched:
            return True
        is_enough = len(chosen) >= self._limits.min_np
        if self._world == 0:
            first = by_spot(self._usable(), self._capacity.order)[: self._limits.max_np]
            return not is_enough or any(entry.phase is Phase.STARTING for entry in first)
        if not is_enough or not self._have_state(chosen):
            if not self._is_short:
                self._is_short = True
                needed = f"{self._limits.min_np} are needed to go on"
                self._say(f"waiting: {needed}, there are {texts.workers(len(chosen))}")
            return True
        # Since newcomers are needed anyway, the others of them save a reset.
        has_room = self._room(len(chosen)) > 0
        return self._is_short and has_room and bool(self._promising())

    def _have_state(self, chosen: Sequence[Entry]) -> bool:
        """Whether the state that anybody has ever had is among them."""
        if self._newest is None or not self._newest[2].standing.has_state:
            return True
        return any(entry.ready.standing.has_state for entry in chosen)

    def _is_state_gone(self) -> bool:
        if self._world == 0:
            return False
        members = self._roll.members(self._world)
        readmitted = [e for e in self._roll if e.phase is Phase.READY and e not in members]
        known = [e for e in readmitted if e.ready.standing.has_state]
        if any(e.phase is not Phase.READY for e in members):
            return False
        return not known and not (members and self._have_state(members))

    def _wait(self) -> None:
        if self._is_hopeless():
            self._give_up("horovodrun: all hosts are blacklisted\n")
            return
        limit = self._out_of_patience_at()
        if limit is None or self._now < limit:
            return
        usable = self._usable()
        needed = self._limits.min_np if self._is_launched else self._limits.np
        if len(usable) < needed or not self._may_get_state(usable):
            why = f"{needed} are needed" if len(usable) < needed else "none of them has the state"
            waited_s = self._limits.elastic_timeout_s
            self._give_up(texts.too_few(why, waited_s, len(usable), self._found))

    def _may_get_state(self, usable: Sequence[Entry]) -> bool:
        is_member = any(e.phase is Phase.SEATED and e.world == self._world for e in usable)
        return is_member or self._have_state(usable)

    def _is_hopeless(self) -> bool:
        """Before the first world: nothing lives, and no host that is there can come back."""
        banned = self._capacity.banned_until(self._now)
        hosts = self._capacity.hosts
        return (
            self._failure is not None
            and not self._usable()
            and bool(hosts)
            and all(math.isinf(banned.get(name, 0.0)) for name in hosts)
        )

    def _is_stalled(self, chosen: Sequence[Entry]) -> bool:
        """Whether worlds end again and again before they begin; then somebody has to go."""
        never_began = (
            self._world > 0
            and self._must_sync
            and not self._published
            and not self._has_losses
            and all(e.ready.standing.world < self._world for e in chosen)
            and any(e.ready.reason for e in chosen if e.world == self._world)
        )
        self._stalls = self._stalls + 1 if never_began else 0
        if self._stalls < _MOST_STALLS:
            return False
        members = self._ordered([e for e in chosen if e.world == self._world])
        named = most_named(members)
        if not named:
            self._give_up(texts.never_together(self._world, self._stalls, members))
            return True
        self._stalls = 0
        for entry in named:
            if entry.is_staying:
                self._fail(entry, "is the one that others cannot reach")
        self._unite()
        return True

    def _ordered(self, chosen: Sequence[Entry]) -> list[Entry]:
        first = best_informed(chosen, self._world)
        return in_rank_order(chosen, self._capacity.order, first)

    def _seat(self, chosen: Sequence[Entry]) -> None:
        """Hand out the next world."""
        limit = self._limits.reset_limit
        if limit is not None and self._world > limit:
            self._finish(1, texts.over_limit(limit))
            return
        ordered = self._ordered(chosen)
        self._must_sync = not self._is_continued(chosen)
        self._remove(self._world + 1)
        self._open_world()
        members = tuple(entry.number for entry in ordered)
        seats = {}
        for entry, slot in zip(ordered, places([e.spot for e in ordered]), strict=True):
            seats[entry.number] = self._seat_at(slot, members)
            entry.enter(Phase.SEATED, self._now)
            entry.world, entry.rank, entry.local_rank = self._world, slot.rank, slot.local_rank
        hostnames = list(dict.fromkeys(entry.spot.hostname for entry in ordered))
        self._capacity.forget_others(self._now, hostnames)
        self._actions.append(Seats(self._world, seats))
        early = [e for e in self._usable() if e.phase is Phase.READY and e.ready.is_early]
        for entry in early:
            entry.enter(Phase.STARTING, self._now)
        self._foresee(early)
        if self._world > 1:
            names = ", ".join(hostnames)
            self._say(f"world {self._world} has {texts.workers(len(ordered))} on {names}")

    def _open_world(self) -> None:
        for entry in self._roll:
            if entry.phase is Phase.SEATED:  # a member of the last one whose slot is gone
                entry.enter(Phase.LEAVING, self._now)
        self._world += 1
        self._apart_since = None
        self._has_losses = self._is_short = False
        self._is_failure_old = True
        self._published = HostUpdate.NONE

    def _is_continued(self, chosen: Sequence[Entry]) -> bool:
        """Whether all have the same state already."""
        standings = {entry.ready.standing for entry in chosen}
        return len(standings) == 1 and all(
            entry.ready.keeps_state and self._world and entry.world == self._world
            for entry in chosen
        )

    def _seat_at(self, slot: Slot, members: tuple[int, ...]) -> Seat:
        return Seat(
            world=self._world,
            rank=slot.rank,
            size=slot.size,
            local_rank=slot.local_rank,
            local_size=slot.local_size,
            cross_rank=slot.cross_rank,
            cross_size=slot.cross_size,
            members=members,
            updates=self._updates,
            must_sync=self._must_sync,
        )

    # How it ends, and what all of this needs.

    def _give_up(self, why: str) -> None:
        """``why``, where the state is, and which failure may have led to this."""
        number, name, ready = self._newest or (-1, "", None)
        is_alive = self._roll.get(number) is not None
        failure = self._failure
        text = why + texts.newest_state(ready, name, is_alive) + (failure.text if failure else "")
        self._finish(1, text, failure=failure)

    def _finish(
        self, status: int, text: str, *, entry: Entry | None = None, failure: Failure | None = None
    ) -> None:
        slot = failure.slot if failure else None
        if entry is not None:
            slot = Slot(entry.spot.hostname, entry.rank, 0, entry.local_rank, 0, 0, 0)
        exit_code = (failure.exit_code or 0) if failure else 0
        self._actions.append(Finish(JobOutcome(status, text, slot, 0, exit_code)))
        self._is_over = True

    def _usable(self) -> list[Entry]:
        """Workers that can be in the next world, now or later."""
        return [entry for entry in self._roll if entry.is_staying and self._is_usable(entry)]

    def _is_usable(self, entry: Entry) -> bool:
        return self._capacity.is_usable(self._now, entry.spot)

    @property
    def _found(self) -> str:
        return texts.hosts_now(self._capacity, self._now)

    def _say_hosts(self) -> None:
        """Not when all is as expected."""
        is_waiting = not self._is_launched
        if is_waiting and len(self._capacity.spots(self._now)) >= self._limits.np:
            return
        needed = f"; {self._limits.np} slots are needed" if is_waiting else ""
        self._say(f"the hosts are now {self._found}{needed}")

    def _say(self, text: str) -> None:
        self._actions.append(Say(text))
