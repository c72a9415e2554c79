"""The numbers of a process that was in several worlds."""

from __future__ import annotations

from horovod.metrics.counters import CounterTotals


class Engine:
    def __init__(self, **counts: int) -> None:
        self._counts = counts

    def counts(self) -> dict[str, int]:
        return self._counts


def test_before_the_first_world_all_is_zero() -> None:
    numbers = CounterTotals().read(None)
    assert {"allreduce_bytes", "waited_seconds", "steps", "resets", "stalls"} <= set(numbers)
    assert not any(numbers.values())
    assert not [name for name in numbers if name.endswith("_ns")]


def test_numbers_never_go_back_but_those_of_the_moment() -> None:
    tally = CounterTotals()
    tally.begin()
    first = Engine(allreduce_bytes=100, waited_ns=1_500_000_000, in_flight=3, last_step_ns=7)
    assert tally.read(first)["in_flight_operations"] == 3
    tally.end(first)
    tally.begin()
    numbers = tally.read(Engine(allreduce_bytes=11, waited_ns=0, in_flight=1, last_step_ns=10**9))
    assert numbers["allreduce_bytes"] == 111
    assert numbers["waited_seconds"] == 1.5
    assert numbers["in_flight_operations"] == 1
    assert numbers["last_step_seconds"] == 1
    assert numbers["resets"] == 1
