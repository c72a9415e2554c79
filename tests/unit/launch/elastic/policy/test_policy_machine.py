"""Random jobs: whatever happens in whatever order, some things never do, and every wait ends."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from horovod.launch.elastic.policy.actions import (
    Abandon,
    Action,
    Assign,
    End,
    Finish,
    Publish,
    Start,
)
from horovod.launch.elastic.policy.policy import ElasticPolicy
from horovod.launch.model.job_plan import Limits
from horovod.rendezvous.identity.elastic_messages import (
    HostUpdate,
    RankAssignment,
    Ready,
    StateVersion,
)

TIMEOUT_S = 100.0
COOLDOWNS = st.sampled_from([(1.0, 4.0), None, (1.0, 8.0), (5.0, 30.0)])


@dataclass
class Process:
    """What a worker really is."""

    slot_id: tuple[str, int]
    is_waiting: bool = False
    has_asked: bool = False
    is_ending: bool = False
    is_done: bool = False
    was_removed: bool = False
    assignment: RankAssignment | None = None
    state_version: StateVersion = field(default_factory=StateVersion)
    keeps_state: bool = False


@dataclass
class World:
    """The last one that was handed out. ``stop``: the kinds that its members saw, if they did."""

    number: int = 0
    members: tuple[int, ...] = ()
    must_sync: bool = True
    kinds: int = 0
    stop: int = 0
    gone: set[int] = field(default_factory=set)
    formed_at: float = 0.0
    abandoned_at: float = math.inf


class Jobs(RuleBasedStateMachine):
    """Plays workers, hosts and time against a policy."""

    @initialize(
        np=st.integers(1, 4),
        fewer=st.integers(1, 3),
        more=st.none() | st.integers(0, 3),
        cooldown=COOLDOWNS,
        reset_limit=st.none() | st.integers(3, 9),
    )
    def begin(self, np, fewer, more, cooldown, reset_limit) -> None:
        self.min_np = max(1, np - fewer)
        self.max_np = None if more is None else np + more
        limits = Limits(np, self.min_np, self.max_np, reset_limit, TIMEOUT_S, cooldown, 10.0)
        self.policy = ElasticPolicy(limits, random.Random(7), lambda: self.now)
        self.now = 0.0
        self.found: dict[str, int] = {}
        self.processes: dict[int, Process] = {}
        self.blamed: set[str] = set()
        self.numbers = 0
        self.world = World()
        self.timestamp = 0
        self.is_over = False
        self.discover({"a": 2, "b": 3})
        self.go_on()

    # What happens.

    @rule(hosts=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), min_size=3))
    def discover(self, hosts) -> None:
        self.found = hosts
        self.obey(self.policy.hosts_found(self.now, hosts))

    @precondition(lambda self: any(p.assignment is None for p in self.asking()))
    @rule(data=st.data())
    def start_up(self, data) -> None:
        """Newcomers get as far as ``init``."""
        fresh = [
            n for n, p in self.processes.items() if p in self.asking() and p.assignment is None
        ]
        for number in data.draw(st.lists(st.sampled_from(fresh), unique=True, min_size=1)):
            if self.is_asking(number):
                self.ask(number, Ready())

    @precondition(lambda self: bool(self.training()))
    @rule(data=st.data(), has_synced=st.booleans(), commits=st.integers(0, 3))
    def fail_over(self, data, has_synced, commits) -> None:
        """A member meets an error and names others."""
        number = data.draw(st.sampled_from(self.training()))
        lost = data.draw(st.lists(st.sampled_from(self.world.members), unique=True, max_size=2))
        self.come_back(number, lost, has_synced, commits)

    @precondition(lambda self: self.world.kinds and self.training())
    @rule()
    def follow_update(self) -> None:
        """All members leave at the same commit."""
        self.world.stop = self.world.stop or self.world.kinds
        for number in self.training():
            if number in self.training():
                self.leave_for_update(number)

    @precondition(lambda self: self.now > 20.0 and bool(self.training()))
    @rule(data=st.data())
    def finish_training(self, data) -> None:
        number = data.draw(st.sampled_from(self.training()))
        self.processes[number].is_done = True
        self.obey(self.policy.worker_done(self.now, number))

    @precondition(lambda self: bool(self.processes))
    @rule(data=st.data(), code=st.sampled_from([1, -9]))
    def exit(self, data, code) -> None:
        number = data.draw(st.sampled_from(sorted(self.processes)))
        self.die(number, code)

    @precondition(lambda self: any(p.is_done or p.is_ending for p in self.processes.values()))
    @rule(code=st.sampled_from([0, -15]))
    def end(self, code) -> None:
        """Those go that are expected to."""
        for number, process in list(self.processes.items()):
            if process.is_done or process.is_ending:
                self.die(number, code)

    @precondition(lambda self: bool(self.processes))
    @rule(hostname=st.sampled_from("abcdef"))
    def lose_host(self, hostname) -> None:
        for number in [n for n, p in self.processes.items() if p.slot_id[0] == hostname]:
            del self.processes[number]
            self.blamed.add(hostname)
        self.obey(self.policy.host_lost(self.now, hostname, "gone"))

    @rule()
    def go_on(self) -> None:
        """All workers do what is expected, and nothing else happens for a while."""
        self.behave()
        self.pass_time(1.0)

    @rule(seconds=st.sampled_from([0.2, 0.9, 1.0, 5.0, 12.0, 30.0]))
    def pass_time(self, seconds) -> None:
        end = self.now + seconds
        while not self.is_over and (due := self.policy.deadline) is not None and due <= end:
            assert due > self.now
            self.now = due
            self.obey(self.policy.tick(self.now))
        self.now = end

    # What processes do.

    def is_asking(self, number: int) -> bool:
        return number in self.processes and self.processes[number] in self.asking()

    def asking(self) -> list[Process]:
        """Workers that run and could ask for a rank."""
        return [
            p
            for p in self.processes.values()
            if not (p.is_waiting or p.is_done or p.is_ending or p.was_removed)
        ]

    def training(self) -> list[int]:
        """Members of the last world that are in it."""
        asking = self.asking()
        numbers = [n for n in self.world.members if n in self.processes]
        return [n for n in numbers if self.processes[n] in asking]

    def ask(self, number: int, ready: Ready) -> None:
        process = self.processes[number]
        ready = replace(ready, is_early=not process.has_asked)
        process.is_waiting = process.has_asked = True
        self.world.gone.add(number)
        self.obey(self.policy.worker_ready(self.now, number, ready))

    def come_back(self, number: int, lost=(), has_synced: bool = True, commits: int = 1) -> None:
        process = self.processes[number]
        if not self.world.must_sync:
            if process.state_version.has_state and has_synced:
                self.advance(process, commits)
        elif has_synced:
            process.state_version = StateVersion(self.world.number, commits)
        process.keeps_state = False
        self.ask(number, Ready(process.state_version, "peer lost", tuple(lost)))

    def leave_for_update(self, number: int) -> None:
        process = self.processes[number]
        if self.world.must_sync:
            process.state_version = StateVersion(self.world.number, 9)
        else:
            self.advance(process, 9)
        process.keeps_state = self.world.stop == HostUpdate.REMOVED
        self.ask(number, Ready(process.state_version, keeps_state=process.keeps_state))

    @staticmethod
    def advance(process: Process, commits: int) -> None:
        process.state_version = StateVersion(
            process.state_version.world, process.state_version.commits + commits
        )

    def die(self, number: int, code: int) -> None:
        self.blamed.add(self.processes.pop(number).slot_id[0])
        self.world.gone.add(number)
        self.obey(self.policy.worker_exited(self.now, number, code))

    # What the policy decides.

    def obey(self, orders: list[Action]) -> None:
        assert not (self.is_over and orders)
        for order in orders:
            assert not self.is_over
            if isinstance(order, Start):
                self.start(order)
            elif isinstance(order, End):
                assert not self.processes[order.worker].is_ending
                self.check_dispensable(order.worker)
                self.processes[order.worker].is_ending = True
                self.blamed.add(self.processes[order.worker].slot_id[0])
            elif isinstance(order, Assign):
                self.hand_out(order)
            elif isinstance(order, Publish):
                assert order.update.timestamp > self.timestamp
                assert not self.world.gone & set(self.world.members)
                self.timestamp = order.update.timestamp
                self.world.kinds |= order.update.kind
            elif isinstance(order, Abandon):
                assert order.world == self.world.number
                self.world.abandoned_at = self.now
            elif isinstance(order, Finish):
                self.is_over = True
                if "have ended; the discovery's last answer" in order.outcome.text:
                    assert not [n for n in self.processes if self.may_have_state(n)]

    def start(self, order: Start) -> None:
        assert order.worker == self.numbers
        self.numbers += 1
        slot_id = (order.rank_info.hostname, order.slot_index)
        assert order.slot_index < self.found[order.rank_info.hostname]
        assert slot_id not in [process.slot_id for process in self.processes.values()]
        self.processes[order.worker] = Process(slot_id)
        usable = [n for n in self.processes if self.may_stay(n)]
        assert self.max_np is None or len(usable) <= 2 * self.max_np

    def hand_out(self, order: Assign) -> None:
        for number, assignment in order.assignments.items():
            process = self.processes[number]
            assert process.is_waiting
            assert not process.is_ending
            assert not assignment.is_provisional or process.assignment is None
            if assignment.removal:
                self.check_dispensable(number)
            process.is_waiting = False
            process.was_removed = bool(assignment.removal)
        kept = {
            n: assignment for n, assignment in order.assignments.items() if not assignment.removal
        }
        assignments = {
            n: assignment for n, assignment in kept.items() if not assignment.is_provisional
        }
        if assignments:
            self.form(order.world, assignments)

    def form(self, number: int, assignments: dict[int, RankAssignment]) -> None:
        first = next(iter(assignments.values()))
        assert number == self.world.number + 1
        assert set(first.members) == set(assignments)
        outgoing = [n for n in first.members if not self.is_usable(n)]
        most = self.max_np or len(assignments)
        can_have_outgoing = outgoing or any(self.is_blamed(n) for n in first.members)
        assert self.min_np <= len(assignments) <= (max(most, 2) if can_have_outgoing else most)
        assert [assignments[n].rank_info.rank for n in first.members] == list(
            range(len(assignments))
        )
        assert {
            (s.world, s.rank_info.size, s.members, s.updates, s.must_sync)
            for s in assignments.values()
        } == {(number, len(assignments), first.members, first.updates, first.must_sync)}
        members = {n: self.processes[n] for n in first.members}
        newest = max(process.state_version for process in members.values())
        assert members[first.members[0]].state_version == newest
        left_behind = set(self.training()) - set(assignments)
        # A world that passes a state on may have one member more than is allowed.
        is_full = self.max_np == len(assignments) < len(self.world.members)
        assert is_full or all(not self.is_usable(n) or self.is_blamed(n) for n in left_behind)
        if left_behind:  # they have the newest state, or one that is a commit older
            kept = [members[n] for n in self.world.members if n in members]
            assert any(process.state_version.has_state for process in kept)
        assert newest.has_state or not [n for n in self.processes if self.reported_state(n)]
        if not first.must_sync:
            assert len({process.state_version for process in members.values()}) == 1
            assert newest.has_state
            assert all(process.keeps_state for process in members.values())
        hosts = [process.slot_id[0] for process in members.values()]
        assert len(set(hosts)) == sum(1 for i, h in enumerate(hosts) if i == 0 or h != hosts[i - 1])
        assert outgoing in ([], [first.members[0]])
        rest = [process.state_version for n, process in members.items() if n not in outgoing]
        assert not outgoing or max(rest) < newest
        for worker, process in members.items():
            process.assignment = assignments[worker]
            same = [p for p in members.values() if p.slot_id[0] == process.slot_id[0]]
            lower = [p for p in same if p.slot_id < process.slot_id]
            assert (
                process.assignment.rank_info.local_rank,
                process.assignment.rank_info.local_size,
            ) == (
                len(lower),
                len(same),
            )
        self.world = World(number, first.members, first.must_sync, formed_at=self.now)

    def check_dispensable(self, number: int) -> None:
        """``number`` is told to go, or ended: no other worker may lose the state by that."""
        process = self.processes[number]
        if not self.may_have_state(number):
            return
        others = [p for n, p in self.processes.items() if n != number and self.is_there(n)]
        if process.is_waiting:
            members = [p for p in others if p.is_waiting or (p.assignment and p.assignment.world)]
            assert (
                max((p.state_version for p in members), default=StateVersion())
                >= process.state_version
            )
            return
        if self.now >= self.world.abandoned_at + TIMEOUT_S:
            return  # it has not come back in time
        waiting = [p for p in others if p.is_waiting]
        has_state = any(p.state_version.has_state for p in waiting)
        # A worker that comes back without the state of its world says that there was none.
        is_fresh = not any(p.state_version.has_state for p in self.processes.values()) and waiting
        assert has_state or is_fresh

    def may_have_state(self, number: int) -> bool:
        """It lives, and has said that it has the state, or is in the world."""
        return self.is_there(number) and (
            self.processes[number].state_version.has_state or number in self.training()
        )

    def reported_state(self, number: int) -> bool:
        return self.is_there(number) and self.processes[number].state_version.has_state

    def is_there(self, number: int) -> bool:
        """It was not told to go."""
        process = self.processes[number]
        return not (process.is_ending or process.was_removed or process.is_done)

    def is_blamed(self, number: int) -> bool:
        """Something has ended on its host, which may be blacklisted."""
        return self.processes[number].slot_id[0] in self.blamed

    def may_stay(self, number: int) -> bool:
        process = self.processes[number]
        is_leaving = process.is_ending or process.was_removed
        if process.assignment and not process.is_waiting and number not in self.world.members:
            is_leaving = True  # its world went on without it
        return self.is_usable(number) and not is_leaving

    def is_usable(self, number: int) -> bool:
        hostname, index = self.processes[number].slot_id
        return index < self.found.get(hostname, 0)

    @invariant()
    def time_moves_on(self) -> None:
        if hasattr(self, "policy"):
            deadline = self.policy.deadline
            assert deadline is None or (deadline > self.now and not self.is_over)

    # In the end.

    def teardown(self) -> None:
        """From now on all workers behave: then no wait may last."""
        if not hasattr(self, "policy"):
            return
        self.obey(self.policy.tick(self.now))
        for _ in range(20):
            self.behave()
            self.pass_time(TIMEOUT_S / 2)
        if self.is_over:
            return
        waiting = [n for n, p in self.processes.items() if p.is_waiting and not p.is_ending]
        assert len(self.training()) == len(self.world.members) >= self.min_np
        assert not waiting or len(self.world.members) == self.max_np

    def behave(self) -> None:
        for number, process in list(self.processes.items()):
            if self.is_over or number not in self.processes:
                continue
            if process.is_ending or process.was_removed:
                self.die(number, 1)
            elif process.is_done:
                self.die(number, 0)
            elif process in self.asking() and number not in self.training():
                is_old = process.assignment is not None
                self.ask(number, Ready(process.state_version, "late" if is_old else ""))
        is_broken = self.world.gone & set(self.world.members)
        for number in self.training():
            if number in self.training() and (is_broken or self.world.kinds) and not self.is_over:
                self.come_back(number) if is_broken else self.leave_by_update_now(number)

    def leave_by_update_now(self, number: int) -> None:
        self.world.stop = self.world.stop or self.world.kinds
        self.leave_for_update(number)


TestJobs = Jobs.TestCase
TestJobs.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
