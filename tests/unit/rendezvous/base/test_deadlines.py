"""Timers, compared with a list that is searched each time; which unauthenticated peer goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horovod.rendezvous.base import deadlines
from horovod.rendezvous.base.admission import UnauthenticatedPeers
from horovod.rendezvous.base.deadlines import Timers

_STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 9).map(float))), max_size=300
)


@given(steps=_STEPS)
def test_the_first_deadline_comes_first(steps: list[tuple[int, float | None]]) -> None:
    kept: Timers[int] = Timers()
    expected: dict[int, float] = {}
    for thing, due in steps:
        kept.set(thing, due)
        expected.pop(thing, None)
        if due is not None:
            expected[thing] = due
        assert kept.first() == min(expected.values(), default=None)
    while expected:
        due = min(expected.values())
        assert kept.take(due - 0.5) is None
        taken = kept.take(due)
        assert taken is not None
        assert expected.pop(taken) == due
    assert kept.take(100.0) is None


def test_replaced_entries_are_dropped() -> None:
    kept: Timers[int] = Timers()
    for number in range(10_000):
        kept.set(0, 3600.0 + number)
        kept.set(0, None)
    assert len(kept._queue) <= deadlines._MOST_STALE + 1


def test_the_oldest_of_the_address_with_the_most_goes_first() -> None:
    here: UnauthenticatedPeers[str] = UnauthenticatedPeers(5)
    for name, address in (("rank", "a"), ("x", "b"), ("other rank", "c"), ("y", "b"), ("z", "b")):
        here.add(name, address)
    assert here.is_full
    gone = []
    while (first := here.first_to_go()) is not None and len(here) > 2:
        gone.append(first)
        here.remove(first)
    assert gone[:2] == ["x", "y"]
    assert "z" in here or "rank" in here
    assert here.remove("nobody") is None
