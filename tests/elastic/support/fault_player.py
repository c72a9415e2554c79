"""Injects faults into a job at moments taken from its history, and checks its recovery."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psutil
from chaos_job import ChaosJob
from fault_plan import Fault
from histories import Event
from traps import Trap
from watch import Member

__all__ = ["FaultPlayer", "Recovery"]


class _ImpossibleError(Exception):
    """The world is too small for a fault at the moment."""


@dataclass(frozen=True)
class Recovery:
    """``seconds`` from a fault to the next completed step; None if no world had to end.

    ``is_in_place``: the next world had enough workers without new ones.
    """

    fault: Fault
    seconds: float | None
    is_in_place: bool = False


class FaultPlayer:
    """Injects one fault after the other; ``recoveries`` are those so far."""

    def __init__(self, job: ChaosJob) -> None:
        self.job = job
        self._watch = job.watch
        self._answered_badly = 0
        self._hosts_seen = len(job.limits.hosts)
        self.recoveries: list[Recovery] = []
        self._ways = {
            "kill": lambda fault: self._lose(fault, self._others()),
            "kill leader": lambda fault: self._lose(fault, self._watch.members[:1]),
            "kill two": self._kill_two,
            "kill newcomer": self._kill_newcomer,
            "kill at": self._kill_at,
            "kill in recovery": self._kill_in_recovery,
            "stop": lambda fault: self._lose(fault, self._others(), signal.SIGSTOP),
            "stop leader": lambda fault: self._lose(fault, self._watch.members[:1], signal.SIGSTOP),
            "host gone": self._host_gone,
            "host removed": self._host_removed,
            "host added": self._host_added,
            "hosts replaced": self._hosts_replaced,
            "slots changed": self._slots_changed,
            "discovery garbage": lambda _: self._answer("garbage"),
            "discovery failing": lambda _: self._answer("failing"),
            "discovery slow": lambda _: self._answer("slow"),
        }

    def play(self, faults: Iterable[Fault]) -> None:
        """``JobError`` if the job does not recover from a fault; impossible faults are skipped."""
        for fault in faults:
            self._wait_for(fault)
            with contextlib.suppress(_ImpossibleError):
                before = {member.process for member in self._watch.members}
                seconds = self._ways[fault.kind](fault)
                after = {member.process for member in self._watch.members}
                self.recoveries.append(Recovery(fault, seconds, bool(after) and after <= before))
            self._end_bad_answers()
        self.job.discovery.answer("good")
        self.wait_for_all()

    def wait_for_all(self) -> None:
        """Wait until the world is as large as the hosts allow."""
        self.job.wait_until(self.job.is_whole, "the world is not whole")

    def _wait_for(self, fault: Fault) -> None:
        def is_time() -> bool:
            is_enough = self.job.is_whole() or (fault.is_hasty and len(self._watch.members) > 1)
            return is_enough and self._watch.batches_done(self._watch.world) >= fault.after

        self.job.wait_until(is_time, f"the world did not get ready for {fault}")

    def _others(self) -> Sequence[Member]:
        return self._watch.members[1:]

    def _lose(
        self, fault: Fault, victims: Sequence[Member], signum: int = signal.SIGKILL
    ) -> float | None:
        """Kill or stop one of ``victims``."""
        safe = [[member] for member in victims if self._is_safe([member])]
        return self._hit(fault, safe, signum)

    def _kill_two(self, fault: Fault) -> float | None:
        members = self._watch.members
        pairs = [[a, b] for a in members for b in members if a.rank < b.rank]
        return self._hit(fault, [pair for pair in pairs if self._is_safe(pair)])

    def _hit(
        self, fault: Fault, choices: Sequence[Sequence[Member]], signum: int = signal.SIGKILL
    ) -> float | None:
        if not choices:
            raise _ImpossibleError
        world = self._watch.world
        start = time.monotonic()
        for member in choices[int(fault.pick * len(choices))]:
            self.job.signal(member, signum)
        return self.job.until_next_step(start, world)

    def _kill_newcomer(self, fault: Fault) -> None:
        """Kill or stop a worker that starts or waits; the world continues or gets another one."""
        newcomers = self.job.newcomers()
        if not newcomers:
            raise _ImpossibleError
        with contextlib.suppress(psutil.NoSuchProcess):
            newcomers[int(fault.pick * len(newcomers))].kill()
        done = len(self._watch.events)
        self.job.wait_until(lambda: len(self._watch.events) > done + 100, f"nothing after {fault}")

    def _kill_at(self, fault: Fault) -> float | None:
        """Kill or stop the first worker that reaches a point of the training."""
        if not all(self._is_safe([member]) for member in self._watch.members):
            raise _ImpossibleError
        start = time.monotonic()
        self.job.lay(Trap(fault.point, signal.SIGKILL, fault.for_leader))
        self.job.wait_until(lambda: self._fallen(start) is not None, f"no rank came: {fault}")
        fall = self._fallen(start)
        assert fall
        return self.job.until_next_step(fall.time, fall.world)

    def _kill_in_recovery(self, fault: Fault) -> float | None:
        """Kill or stop one more worker while the next world forms."""
        members = self._watch.members
        # A host that lost a worker is blacklisted, and its other workers go with it.
        hosts = {member.hostname for member in members}
        choices = [[member] for member in members if len(hosts - {member.hostname}) > 1]
        if not choices:
            raise _ImpossibleError
        self.job.lay(Trap(fault.point, signal.SIGKILL, fault.for_leader, fault.delay_s))
        start = time.monotonic()
        seconds = self._hit(fault, choices)
        self.job.remove_trap(fault.point)
        self.job.watch.look()
        if fall := self._fallen(start):
            self._wait_for_others_than(fall.process)
        return seconds

    def _fallen(self, start: float) -> Event | None:
        """The worker that has fallen into a trap since ``start``."""
        falls = (event for event in self._watch.events[::-1] if event.kind == "trap")
        return next((event for event in falls if event.time > start), None)

    def _wait_for_others_than(self, process: str) -> None:
        """Wait until a world without the worker has done a batch; the worker may live longer."""

        def has_gone() -> bool:
            processes = [member.process for member in self._watch.members]
            is_in = process in processes or not processes
            return not is_in and self._watch.batches_done(self._watch.world) > 0

        self.job.wait_until(has_gone, f"{process} should have died")

    def _is_safe(self, victims: Sequence[Member]) -> bool:
        """Whether a worker of the world stays."""
        return len(self._watch.members) > len(victims)

    def _host_gone(self, fault: Fault) -> float | None:
        """Lose a host with all its workers and unlist it; it comes back with the next change."""
        chosen = self._one_host(fault)
        self._set_hosts({n: s for n, s in self.job.discovery.hosts.items() if n != chosen})
        on_it = [member for member in self._watch.members if member.hostname == chosen]
        return self._hit(fault, [on_it])

    def _host_removed(self, fault: Fault) -> None:
        chosen = self._one_host(fault)
        self._set_hosts({n: s for n, s in self.job.discovery.hosts.items() if n != chosen})
        self.wait_for_all()

    def _host_added(self, fault: Fault) -> None:
        """Add a new host, or bring back lost hosts."""
        hosts = {**self.job.limits.hosts, **self.job.discovery.hosts}
        if hosts == self.job.discovery.hosts:
            self._hosts_seen += 1
            hosts = {**hosts, f"127.0.0.{self._hosts_seen}": 1 + int(2 * fault.pick)}
        self._set_hosts(hosts)
        self.wait_for_all()

    def _hosts_replaced(self, _: Fault) -> None:
        """Replace all hosts at once: no host with the state is listed any more."""
        hosts = self.job.discovery.hosts
        fresh = [f"127.0.0.{self._hosts_seen + 1 + index}" for index in range(len(hosts))]
        self._hosts_seen += len(hosts)
        self._set_hosts(dict(zip(fresh, hosts.values(), strict=True)))
        self.wait_for_all()

    def _slots_changed(self, fault: Fault) -> None:
        """Give one host one slot more, or one less if it has several."""
        hosts = self.job.discovery.hosts
        chosen = list(hosts)[int(fault.pick * len(hosts))]
        is_enough = sum(hosts.values()) > self.job.limits.min_np
        slots = hosts[chosen] - 1 if hosts[chosen] > 1 and is_enough else hosts[chosen] + 1
        self._set_hosts({**hosts, chosen: slots})
        self.wait_for_all()

    def _one_host(self, fault: Fault) -> str:
        """A host that can be lost: enough slots and a worker of the world remain."""
        hosts = self.job.discovery.hosts
        used = {member.hostname for member in self._watch.members}
        slots = sum(hosts.values())
        choices = [
            name
            for name in hosts
            if name in used and len(used) > 1 and slots - hosts[name] >= self.job.limits.min_np
        ]
        if not choices:
            raise _ImpossibleError
        return choices[int(fault.pick * len(choices))]

    def _set_hosts(self, hosts: dict[str, int]) -> None:
        self.job.discovery.answer("good")
        self._answered_badly = 0
        self.job.discovery.set_hosts(hosts)

    def _answer(self, how: str) -> None:
        """Give no good answer during this fault and the next one."""
        self.job.discovery.answer(how)
        self._answered_badly = 2

    def _end_bad_answers(self) -> None:
        if self._answered_badly > 0:
            self._answered_badly -= 1
            if self._answered_badly == 0:
                self.job.discovery.answer("good")
