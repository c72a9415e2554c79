"""Measuring, on an engine that counts what the test says whenever the meter looks away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from horovod.autotune.tuner import StepMeter


class Clock(threading.Event):
    """Instead of sleeping it lets steps happen."""

    def __init__(self, pass_time: Callable[[float], None]) -> None:
        super().__init__()
        self._pass_time = pass_time
        self.sleeps: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.sleeps.append(timeout)
        self._pass_time(timeout)
        return self.is_set()


class Engine:
    """Steps of 10 ms and 1000 bytes, but for ``odd`` ones."""

    def __init__(self, odd: Sequence[int] = ()) -> None:
        self.now = 0.0
        self._odd = odd

    def counts(self) -> dict[str, int]:
        steps = int(self.now / 0.01)
        names = ("allgather", "broadcast", "alltoall", "reducescatter")
        return {
            **{f"{name}_bytes": 0 for name in names},
            "allreduce_bytes": 1000 * steps,
            "steps": steps,
            "join_operations": 0,
        }

    def step_times(self, first: int) -> list[int]:
        ours = range(first, int(self.now / 0.01))
        return [10**9 if step in self._odd else 10_000_000 for step in ours][-255:]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds


def test_a_sample_is_the_median_of_steps_that_begin_after_it():
    engine = Engine(odd=(0, 1, 5))
    clock = Clock(engine.pass_time)
    meter = StepMeter(engine, clock)
    assert meter.step_ns(10) == 10_000_000
    assert engine.now >= 0.12  # two steps settle
    assert len(clock.sleeps) < 12


def test_more_steps_than_are_remembered():
    engine = Engine()
    assert StepMeter(engine, Clock(engine.pass_time)).step_ns(1000) == 10_000_000
    assert 10 < engine.now < 10.5


def test_bytes_of_a_step():
    engine = Engine()
    assert StepMeter(engine, Clock(engine.pass_time)).step_bytes(30) == 1000


def test_a_program_that_makes_no_steps_is_looked_at_ever_less():
    clock = Clock(lambda _: clock.set() if len(clock.sleeps) > 15 else None)
    assert StepMeter(Engine(), clock).step_ns(10) is None
    assert clock.sleeps[0] < 0.02
    assert clock.sleeps[-1] == 5
