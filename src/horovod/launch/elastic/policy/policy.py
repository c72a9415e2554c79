"""What an elastic job does next; see the package for the rules."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

from horovod.launch.elastic import texts
from horovod.launch.elastic.policy import next_world
from horovod.launch.elastic.policy.actions import Abandon, Action, Finish, Publish
from horovod.launch.elastic.policy.worker_pool import WorkerPool
from horovod.launch.elastic.policy.workers import Entry, Failure, Phase, most_named
from horovod.launch.model.hosts import counted
from horovod.launch.model.job_plan import JobOutcome, Limits
from horovod.launch.workers.processes import describe_exit
from horovod.rendezvous.identity.elastic_messages import HostUpdate, Ready, Update

# Worlds in a row that may end before they begin although no worker is lost.
_MOST_STALLS = 3


class ElasticPolicy:
    """Decides for one job. Every event returns the actions that follow from it.

    After a ``Finish`` no actions follow. ``now`` is in monotonic seconds, ``wall_s`` gives seconds
    since the epoch.
    """

    def __init__(self, limits: Limits, rng: random.Random, wall_s: Callable[[], float]) -> None:
        self._limits = limits
        self._wall_s = wall_s
        self._actions: list[Action] = []
        self._pool = WorkerPool(limits, rng, self._actions)
        self._is_over = False
        self._is_launched = False
        self._has_succeeded = False
        # Workers that exited with 0 in training: at its end, unless others ask for another world.
        self._quiet: list[Entry] = []
        # The current world.
        self._must_sync = True
        self._published = HostUpdate.NONE
        # The time since when there is no world, and whether workers were missing then.
        self._apart_since: float | None = None
        self._is_short = False
        self._stalls = 0
        # Whether a member is in the world only to pass its state on, and how many such worlds ended
        # in nothing but its release.
        self._is_handover = False
        self._releases = 0
        # For later.
        self._updates = 0
        self._timestamp = 0
        self._newest = Ready()
        self._newest_of: Entry | None = None

    # Events.

    def hosts_found(self, now: float, hosts: Mapping[str, int]) -> list[Action]:
        """The discovery has answered: all hosts with their numbers of slots."""
        capacity = self._pool.capacity
        if self._begin(now):
            before = capacity.hosts
            capacity.found(hosts)
            if capacity.hosts != before:
                self._say_hosts()
        return self._settle()

    def worker_ready(self, now: float, worker: int, ready: Ready) -> list[Action]:
        """A worker asks for a rank."""
        pool, entry = self._pool, self._pool.registry.get(worker)
        if self._begin(now) and entry is not None and entry.phase is not Phase.ENDING:
            if ready.is_early and pool.world and pool.is_usable(entry):
                next_world.assign_provisional_ranks(pool, [entry], self._updates)
                return self._settle()
            is_member = entry.world == pool.world
            is_leaving = is_member and entry.phase in (Phase.RUNNING, Phase.DONE)
            entry.ready = ready
            entry.enter(Phase.READY, pool.now)
            if is_leaving:
                self._doubt_quiet()
            if ready.state_version >= self._newest.state_version:
                self._newest, self._newest_of = ready, entry
            if is_leaving:
                self._part(f"{entry.name} has left it: {ready.reason or 'an update'}")
            if is_member:
                pool.doubt(ready.lost, entry)
        return self._settle()

    def worker_done(self, now: float, worker: int) -> list[Action]:
        """A worker's training function has returned."""
        entry = self._pool.registry.get(worker)
        if self._begin(now) and entry is not None and entry.is_staying:
            entry.enter(Phase.DONE, self._pool.now)
        return self._settle()

    def worker_fatal(self, now: float, worker: int, text: str) -> list[Action]:
        """A worker has met an error that every restart would repeat."""
        entry = self._pool.registry.get(worker)
        if self._begin(now) and entry is not None and entry.is_staying:
            text = f"horovodrun: {entry.name} cannot go on: {text}\n"
            failure = Failure(worker, entry.name, "cannot go on", entry.rank_info, None)
            self._finish(1, text, failure)
        return self._settle()

    def worker_exited(
        self, now: float, worker: int, exit_code: int, *, is_complete: bool = True
    ) -> list[Action]:
        """A worker's process has ended; a negative ``exit_code`` is a signal.

        ``is_complete``: it has left all that was expected of it.
        """
        if self._begin(now) and (entry := self._pool.registry.remove(worker)) is not None:
            if entry.is_staying:
                self._judge(entry, exit_code, is_complete)
            elif entry.phase is not Phase.ENDING:
                self._pool.note_leave(entry, describe_exit(exit_code))
        return self._settle()

    def host_lost(self, now: float, hostname: str, text: str) -> list[Action]:
        """A host cannot be reached, or not any more: its workers are gone."""
        if self._begin(now):
            registry = self._pool.registry
            if any(e.hostname == hostname and e.phase is Phase.RUNNING for e in registry):
                self._doubt_quiet()
            self._pool.lose_host(hostname, text, is_punished=not self._is_finishing)
        return self._settle()

    def note_pid(self, worker: int, pid: int) -> None:
        """A worker's process has been started; messages name it."""
        if (entry := self._pool.registry.get(worker)) is not None:
            entry.pid = pid

    def tick(self, now: float) -> list[Action]:
        """``deadline`` has come."""
        self._begin(now)
        return self._settle()

    @property
    def deadline(self) -> float | None:
        """When ``tick`` is needed unless something else happens; later than the last event."""
        if self._is_over:
            return None
        pool, now = self._pool, self._pool.now
        times = [pool.capacity.next_change(now), self._gives_up_at]
        if self._pool.stranded_since is not None:
            times.append(self._pool.stranded_since + self._limits.elastic_timeout_s)
        for entry in pool.registry:
            times += [entry.lost_at, self._overdue_at(entry)]
            if entry.phase is Phase.STARTING:
                times.append(entry.since + self._limits.newcomer_timeout_s)
        return min((t for t in times if t is not None and now < t < math.inf), default=None)

    @property
    def workers(self) -> dict[int, str]:
        """The hosts of the workers that have not ended, by number."""
        return {entry.number: entry.hostname for entry in self._pool.registry}

    # The consequences of events.

    def _begin(self, now: float) -> bool:
        """Take over the time, which never goes back. Returns whether events still count."""
        self._pool.now = max(self._pool.now, now)
        if self._pool.world == 0 and self._apart_since is None:
            self._apart_since = self._pool.now
        return not self._is_over

    def _settle(self) -> list[Action]:
        if not self._is_over:
            self._end_overdue()
            if self._pool.losses:
                self._part(self._pool.losses[0])
        if not self._is_over:
            if self._is_finishing:
                self._look_for_success()
            else:
                self._start_workers()
                if self._apart_since is not None:
                    self._unite()
                else:
                    self._publish_changes()
        actions = list(self._actions)
        self._actions.clear()
        return actions

    @property
    def _is_done(self) -> bool:
        """Whether a training function has returned."""
        is_done = any(entry.phase is Phase.DONE for entry in self._pool.registry)
        return is_done or self._has_succeeded

    @property
    def _is_finishing(self) -> bool:
        return self._is_done or bool(self._quiet)

    def _doubt_quiet(self) -> None:
        """Others had not finished, so workers that exited with 0 had not, either: they failed."""
        if self._is_done:
            return
        quiet, self._quiet = self._quiet, []
        for entry in quiet:
            self._fail(entry, "exited with code 0 without having finished", 0)

    def _end_overdue(self) -> None:
        pool, now = self._pool, self._pool.now
        due = [e for e in pool.registry if (at := self._overdue_at(e)) is not None and now >= at]
        for entry in pool.registry:
            is_lost = entry.lost_at is not None and now >= entry.lost_at
            if is_lost and next_world.can_be_given_up(pool, self._newest):
                self._fail(entry, f"does not answer, which {entry.reported_by} found")
        if any(e.phase is Phase.RUNNING and pool.is_usable(e) for e in due):
            self._apart_since = now  # the wait for others in their place begins
        what = f"did not ask for a place within {self._limits.elastic_timeout_s:g} s"
        for entry in due:
            if entry.phase in (Phase.LATE, Phase.LEAVING):
                pool.end(entry, what)
            elif entry.is_staying:
                self._fail(entry, what)

    def _overdue_at(self, entry: Entry) -> float | None:
        if entry.phase in (Phase.STARTING, Phase.LATE, Phase.LEAVING):
            return entry.since + self._limits.elastic_timeout_s
        is_member = entry.phase is Phase.RUNNING and entry.world == self._pool.world
        return self._gives_up_at if is_member else None

    @property
    def _gives_up_at(self) -> float | None:
        if self._apart_since is None:
            return None
        return self._apart_since + self._limits.elastic_timeout_s

    def _look_for_success(self) -> None:
        """Wait for all workers that can still succeed, as in a job of fixed size."""
        world, busy = self._pool.world, {Phase.DONE, Phase.RUNNING}
        if world == 0:
            busy.add(Phase.STARTING)  # a command that never asks for a rank
        is_busy = any(e.phase in busy and e.world == world for e in self._pool.registry)
        if (self._has_succeeded or self._quiet) and not is_busy:
            self._finish(0, "")

    def _start_workers(self) -> None:
        pool, limit = self._pool, self._gives_up_at
        if not self._is_launched:
            self._is_launched = len(pool.capacity.usable_slots(pool.now)) >= self._limits.np
        # After the limit the workers that are there must suffice, or waiting would have no end.
        if self._is_launched and (limit is None or pool.now <= limit):
            pool.fill()

    def _judge(self, entry: Entry, exit_code: int, is_complete: bool) -> None:
        """Decide what the end of a process means that the driver did not end."""
        # A command without elastic training says nothing before its end.
        is_alone = self._pool.world == 0 and entry.phase is Phase.STARTING
        is_running = entry.phase is Phase.RUNNING and self._pool.is_usable(entry)
        if exit_code:
            self._fail(entry, describe_exit(exit_code), exit_code)
        elif not is_complete:
            self._fail(entry, "exited with code 0 and left no result", 0)
        elif entry.phase is Phase.DONE or is_alone:
            self._has_succeeded = True
        elif is_running and self._apart_since is None:
            self._quiet.append(entry)
        else:
            self._fail(entry, "exited with code 0 without having finished", 0)

    def _fail(self, entry: Entry, what: str, exit_code: int | None = None) -> None:
        if entry.phase is Phase.RUNNING:  # a newcomer says nothing about the training
            self._doubt_quiet()
        self._pool.fail(entry, what, exit_code, is_punished=not self._is_finishing)

    def _part(self, reason: str) -> None:
        """End the current world, also for members that still connect."""
        if self._apart_since is None:
            self._apart_since = self._pool.now
            self._pool.stranded_since = None
            self._is_short = False
            self._actions.append(Abandon(self._pool.world, reason))

    # Together: what the members should know.

    def _publish_changes(self) -> None:
        next_world.remove(self._pool)
        limits = self._limits
        is_urgent = self._pool.is_stranded_for(limits.elastic_timeout_s)
        kind = next_world.change(self._pool, limits.min_np, limits.max_np, is_urgent=is_urgent)
        if kind & ~self._published:
            self._published |= kind
            self._timestamp = max(int(self._wall_s()), self._timestamp + 1)
            self._updates += 1
            self._actions.append(Publish(Update(self._timestamp, int(kind))))

    # Apart: on the way to the next world.

    def _unite(self) -> None:
        """Form the next world if all its members are there; else see how long to wait."""
        pool = self._pool
        if next_world.is_state_gone(pool, self._newest):
            state = (self._newest, pool.world, pool.endings)
            self._give_up(texts.lost_state(*state, pool.now, self._found))
            return
        chosen = next_world.candidates(pool, self._limits.max_np)
        is_missing = any(entry.phase is not Phase.READY for entry in chosen)
        source = None if is_missing else next_world.state_source(pool, chosen)
        if is_missing or self._should_wait(chosen, source):
            self._wait()
            return
        if source is not None:
            most = self._limits.max_np
            chosen = [source, *chosen][: most and max(most, 2)]  # one at least takes its state over
        is_stall = self._must_sync and next_world.never_began(pool, chosen)
        self._stalls = self._stalls + 1 if is_stall else 0
        if self._stalls == _MOST_STALLS:  # a worker has to go
            self._exclude_unreachable(chosen)
        else:
            self._begin_world(chosen)

    def _should_wait(self, chosen: Sequence[Entry], source: Entry | None) -> bool:
        limits = self._limits
        is_enough = len(chosen) >= limits.min_np
        if not self._is_launched:
            return True
        if self._pool.world == 0:
            if (left := len(self._pool.usable())) < limits.min_np:  # some have failed
                self._say_short(left)
            return not (is_enough and next_world.is_complete_at_first(self._pool, limits.max_np))
        informed = [*chosen, source] if source is not None else chosen
        if not is_enough or not next_world.is_fit(self._pool, informed, self._newest):
            self._say_short(len(chosen))
            return True
        # Since newcomers are needed anyway, more newcomers now save a reset.
        has_room = limits.max_np is None or len(chosen) < limits.max_np
        return self._is_short and has_room and bool(self._pool.promising())

    def _say_short(self, count: int) -> None:
        """Say once what the next world waits for; ``count`` workers could go on."""
        if not self._is_short:
            self._is_short = True
            self._pool.say(texts.waiting(self._limits.min_np, count))

    def _wait(self) -> None:
        """Give up if the time is over, and the living workers cannot become enough."""
        pool, limit = self._pool, self._gives_up_at
        is_hopeless = pool.is_hopeless()
        if not is_hopeless and (limit is None or pool.now < limit):
            return
        usable = pool.usable()
        needed = self._limits.min_np if self._is_launched else self._limits.np
        if len(usable) < needed and pool.reinstate(needed - len(usable)):
            self._unite()
        elif is_hopeless:
            kept = pool.blacklisted_holders()
            self._give_up(texts.all_blacklisted(kept, needed, self._found))
        elif len(usable) < needed:
            why, waited_s = f"{needed} are needed", self._limits.elastic_timeout_s
            self._give_up(texts.too_few(why, waited_s, len(usable), self._found))

    def _exclude_unreachable(self, chosen: Sequence[Entry]) -> None:
        pool = self._pool
        members = next_world.ordered(pool, [e for e in chosen if e.world == pool.world])
        named = next_world.without_last_holders(most_named(members), members)
        if not named:
            self._give_up(texts.never_together(pool.world, self._stalls, members))
            return
        for entry in named:
            if entry.is_staying:
                self._fail(entry, "is the one that others cannot reach")
        self._unite()

    def _begin_world(self, chosen: Sequence[Entry]) -> None:
        """Assign the ranks of the next world."""
        pool, limit = self._pool, self._limits.reset_limit
        if self._is_handover and not any(entry.ready.reason for entry in chosen):
            self._releases += 1  # the second reset for one change
        if limit is not None and pool.world - self._releases > limit:
            self._finish(1, texts.over_limit(limit), pool.new_failure)
            return
        by_rank = next_world.ordered(pool, chosen)
        self._must_sync = not next_world.is_continued(chosen, pool.world)
        self._is_handover = not all(pool.is_usable(entry) for entry in chosen)
        next_world.remove(pool, chosen)
        self._apart_since = None
        self._is_short = False
        self._published = HostUpdate.NONE
        world = pool.world + 1
        pool.begin_world(next_world.assignments(by_rank, world, self._updates, self._must_sync))
        early = [entry for entry in pool.ready() if entry.ready.is_early]
        next_world.assign_provisional_ranks(pool, early, self._updates)
        if world > 1:
            self._say_world(by_rank)

    def _say_world(self, by_rank: Sequence[Entry]) -> None:
        pool, first = self._pool, by_rank[0]
        hostnames = ", ".join(dict.fromkeys(entry.hostname for entry in by_rank))
        pool.say(f"world {pool.world} has {counted(len(by_rank), 'worker')} on {hostnames}")
        if first.ready.state_version < self._newest.state_version and self._newest_of is not None:
            pool.say(texts.older_state(first, self._newest_of.name))

    # The end.

    def _give_up(self, why: str) -> None:
        """Finish with ``why``, where the state is, and the failure that may have led to this."""
        entry = self._newest_of
        is_alive = entry is not None and self._pool.registry.get(entry.number) is entry
        unasked = sum(each.phase is Phase.RUNNING for each in self._pool.registry)
        name = entry.name if entry else ""
        text = why + texts.newest_state(self._newest, name, is_alive, unasked)
        failure = self._pool.failure
        self._finish(1, text + (failure.text if failure else ""), failure)

    def _finish(self, status: int, text: str, failure: Failure | None = None) -> None:
        """End the job; ``failure`` is what led to this, if one did."""
        outcome = JobOutcome(status, text)
        if failure is not None:
            code = failure.exit_code or 0
            outcome = JobOutcome(status, text, failure.rank_info, 0, code, worker=failure.number)
        self._actions.append(Finish(outcome))
        self._is_over = True

    @property
    def _found(self) -> str:
        return texts.hosts_now(self._pool.capacity, self._pool.now)

    def _say_hosts(self) -> None:
        """Nothing is said while all is as expected."""
        pool, is_waiting = self._pool, not self._is_launched
        if is_waiting and len(pool.capacity.usable_slots(pool.now)) >= self._limits.np:
            return
        needed = f"; {self._limits.np} slots are needed" if is_waiting else ""
        pool.say(f"the hosts are now {self._found}{needed}")
