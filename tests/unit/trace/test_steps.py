"""Steps, what they spend their time on, and who is slow: on recordings made up for it."""

from __future__ import annotations

import numpy as np
import pytest
from recorded import MS, Script, training, training_scripts

from horovod.trace.analysis.accounts import accounts_of, covered, intersection, merged
from horovod.trace.analysis.slow_ranks import find_imbalance, find_slow_peers, peer_waits
from horovod.trace.analysis.steps import FEWEST_STEPS, MOST_STEPS, find_steps
from horovod.trace.recording import EventKind, WaitPhase


def test_sets_of_times() -> None:
    one = merged([(5, 9), (0, 2), (1, 3), (9, 9), (8, 10)])
    assert one.tolist() == [[0, 3], [5, 10]]
    assert covered(one, np.array([0, 1, 4, 6, 20])).tolist() == [1, 2, 1, 4]
    assert intersection(one, merged([(2, 6), (7, 8)])).tolist() == [[2, 3], [5, 6], [7, 8]]
    nothing = merged([])
    assert covered(nothing, np.array([0, 5])).tolist() == [0]
    assert len(intersection(one, nothing)) == 0


def test_steps_are_the_same_on_all_ranks() -> None:
    recordings = training([10, 12], steps=8)
    steps = find_steps(recordings)
    assert steps is not None
    assert (steps.anchor, steps.count) == ("allreduce.g0", 7)
    for rank in (0, 1):
        assert np.diff(steps.begins[rank]) == pytest.approx(13.01 * MS)


def test_only_the_last_steps_count_and_few_are_none() -> None:
    many = find_steps(training([1, 1], steps=MOST_STEPS + 50))
    assert many is not None
    assert many.count == MOST_STEPS
    assert find_steps(training([1, 1], steps=FEWEST_STEPS)) is None
    assert find_steps({0: Script().recording(1)}) is None
    assert find_steps({}) is None


def test_a_step_begins_where_most_time_passes_before() -> None:
    script = Script(size=1)
    for step in range(10):
        begin = step * 100
        for number, name in enumerate(("b", "a", "c")):
            at = begin + (50, 60, 70)[number]
            script.submit(at, name).start(at + 1, step * 3 + number, [name])
            script.done(at + 2, step * 3 + number)
    script.submit(2000, "rare").submit(2001, "metric")
    steps = find_steps({0: script.recording(3000)})
    assert steps is not None
    assert (steps.anchor, steps.count) == ("b", 9)


@pytest.mark.parametrize("pattern", ["allreduce.noname.{}", "reduce number {} of group default"])
def test_operations_without_a_name_are_told_by_shape(pattern: str) -> None:
    script = Script(size=1)
    for step in range(10):
        name = pattern.format(step)
        script.submit(step * 10, name, shape=(7,)).start(step * 10 + 1, step, [name])
        script.done(step * 10 + 2, step)
    steps = find_steps({0: script.recording(3000)})
    assert steps is not None
    assert steps.count == 9


def test_the_time_of_a_step_is_split() -> None:
    recordings = training([10, 14], run_ms=2)
    steps = find_steps(recordings)
    assert steps is not None
    fast, slow = (account.usual for account in accounts_of(recordings, steps))
    assert fast.compute_ns == pytest.approx(10 * MS)
    assert fast.wait_ns == pytest.approx(4.01 * MS)
    assert fast.transport_ns == pytest.approx(2 * MS)
    assert slow.compute_ns == pytest.approx(14 * MS)
    assert slow.wait_ns == pytest.approx(0.01 * MS)


def test_waits_for_ranks_of_the_host_are_no_transport() -> None:
    scripts = training_scripts([10, 10], run_ms=4)
    for step in range(20):
        done = (step + 1) * 14.01
        scripts[0].waited(done, 1, 3)
        scripts[1].waited(done, 0, 3, WaitPhase.LINK)
    recordings = {script.rank: script.recording(10_000) for script in scripts}
    steps = find_steps(recordings)
    assert steps is not None
    near, far = (account.usual for account in accounts_of(recordings, steps))
    assert near.transport_ns == pytest.approx(1 * MS)
    assert near.wait_ns == pytest.approx(3.01 * MS)
    assert far.transport_ns == pytest.approx(4 * MS)


def test_where_no_wait_was_seen_it_is_inferred() -> None:
    recordings = training([10, 14])
    for rank, recording in recordings.items():
        is_wait = np.flatnonzero(recording.events["kind"] == EventKind.BLOCKED)
        events = np.delete(recording.events, is_wait[3:])  # three are not those of its steps
        recordings[rank] = type(recording)(**{**vars(recording), "events": events})
    steps = find_steps(recordings)
    assert steps is not None
    fast, slow = accounts_of(recordings, steps)
    assert not fast.is_exact
    assert fast.usual.compute_ns == pytest.approx(10 * MS)
    assert slow.usual.compute_ns == pytest.approx(14 * MS)


def test_a_long_step_does_not_count() -> None:
    recordings = training([[10] * 15 + [500] + [10] * 4, 10])
    steps = find_steps(recordings)
    assert steps is not None
    assert accounts_of(recordings, steps)[0].usual.duration_ns == pytest.approx(11.01 * MS)


def test_the_slowest_rank_and_by_how_much() -> None:
    recordings = training([10, 10, 17, 10])
    steps = find_steps(recordings)
    assert steps is not None
    imbalance = find_imbalance(accounts_of(recordings, steps))
    assert imbalance is not None
    worst = imbalance.ranks[0]
    assert (worst.rank, worst.slowest_share) == (2, 1)
    assert worst.extra_ns == pytest.approx(7 * MS)
    assert imbalance.lost_ns == pytest.approx(7 * MS)


def test_ranks_that_are_slow_in_turn() -> None:
    turns = [[20.0 if step % 3 == rank else 10.0 for step in range(30)] for rank in range(3)]
    recordings = training(turns, steps=30)
    steps = find_steps(recordings)
    assert steps is not None
    imbalance = find_imbalance(accounts_of(recordings, steps))
    assert imbalance is not None
    assert max(pace.slowest_share for pace in imbalance.ranks) < 0.5
    assert imbalance.ranks[0].extra_ns <= 0
    assert imbalance.lost_ns == pytest.approx(10 * MS)
    assert find_imbalance(accounts_of(recordings, steps)[:1]) is None


@pytest.mark.parametrize("phase", [WaitPhase.STAGED, WaitPhase.LINK])
def test_a_rank_that_others_wait_for_in_collectives(phase: WaitPhase) -> None:
    scripts = training_scripts([10, 10, 10], run_ms=5)
    for step in range(20):
        done = (step + 1) * 15.01
        for script in scripts:
            for peer in {0, 1, 2} - {script.rank}:
                script.waited(done - peer, peer, 3 if peer == 1 else 0.5, phase)
    recordings = {script.rank: script.recording(10_000) for script in scripts}
    steps = find_steps(recordings)
    assert steps is not None
    (slow,) = find_slow_peers(peer_waits(recordings, steps), steps)
    assert (slow.peer, slow.is_link) == (1, phase is WaitPhase.LINK)
    assert slow.wait_ns == pytest.approx(3 * MS, rel=0.1)
    assert slow.usual_ns == pytest.approx(0.5 * MS, rel=0.1)


def test_ranks_that_all_wait_alike_are_not_slow() -> None:
    scripts = training_scripts([10, 10, 10], run_ms=5)
    for step in range(20):
        for script in scripts:
            for peer in {0, 1, 2} - {script.rank}:
                script.waited((step + 1) * 15.01 - peer, peer, 1)
    recordings = {script.rank: script.recording(10_000) for script in scripts}
    steps = find_steps(recordings)
    assert steps is not None
    assert find_slow_peers(peer_waits(recordings, steps), steps) == []
