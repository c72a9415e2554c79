"""What hangs, fails or runs alone, and clocks: on recordings made up for it."""

from __future__ import annotations

from dataclasses import replace

from recorded import BARRIER, JOIN, MS, Script, training, training_scripts

from horovod import errors
from horovod.errors import ErrorCode
from horovod.trace.analysis.clocks import align_clocks
from horovod.trace.analysis.fusion import WhyAlone, find_fusion
from horovod.trace.analysis.steps import find_steps
from horovod.trace.analysis.trouble import (
    find_deaths,
    find_mismatches,
    find_stalls,
    find_stuck,
    first_error,
    last_operations,
    pending_of,
)
from horovod.trace.recording import EventKind, Recording
from horovod.trace.stacks import main_thread, own_call
from horovod.trace.worlds import collect_worlds

STACKS = """Thread 0x1 [horovod] (most recent call first):
  <no Python frame>

Current thread 0x2 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 5 in wait
  File "/env/lib/python3.11/site-packages/horovod/flights.py", line 7 in submit
  File "/home/me/train.py", line 41 in validate
  File "/home/me/train.py", line 88 in <module>
"""


def by_rank(*recordings: Recording) -> dict[int, Recording]:
    return {recording.rank: recording for recording in recordings}


def diverged() -> list[Script]:
    scripts = training_scripts([10, 10], steps=3)
    scripts[0].submit(100, "allreduce.grad")
    scripts[1].submit(101, "allreduce.loss")
    return scripts


def test_ranks_that_have_gone_different_ways() -> None:
    first, second = find_stalls(by_rank(*(s.recording(5_100) for s in diverged())), 2)
    assert (first.label.name, first.ready, first.missing) == ("allreduce.grad", (0,), (1,))
    assert first.age_ns == 5000 * MS
    assert (second.label.name, second.ready, second.missing) == ("allreduce.loss", (1,), (0,))


def test_who_left_no_recording_is_not_known_to_be_missing() -> None:
    (stall,) = find_stalls(by_rank(diverged()[0].recording(5_100)), 3)
    assert (stall.ready, stall.missing, stall.unknown) == ((0,), (), (1, 2))


def test_what_runs_or_is_done_does_not_wait() -> None:
    script = Script().submit(1, "a").submit(1, "b").start(2, 1, ["a"])
    assert [pending.label.name for pending in pending_of(script.recording(10))] == ["b"]
    assert find_stalls(training([10, 10]), 2) == []


def test_what_failed_with_the_world_waited_until_then() -> None:
    script = Script().submit(1, "a").failed(31, "a", ErrorCode.PEER_LOST)
    script.submit(2, "b").failed(3, "b", ErrorCode.MISMATCH)
    (pending,) = pending_of(script.recording(100))
    assert (pending.label.name, pending.age_ns) == ("a", 30 * MS)


def test_a_rank_that_has_joined_is_not_missing() -> None:
    waiting = Script(0).submit(1, "a").recording(9_000)
    joined = Script(1).submit(1, "join.noname", kind=JOIN).recording(9_000)
    stalls = find_stalls(by_rank(waiting, joined), 2)
    assert [(stall.label.name, stall.missing) for stall in stalls] == [
        ("a", ()),
        ("join.noname", (0,)),
    ]


def test_a_process_set_has_members_that_were_active_in_it() -> None:
    scripts = [Script(rank, 3) for rank in range(3)]
    for script in scripts[:2]:
        script.submit(1, "a", process_set=1).start(2, 1, ["a"], process_set=1)
        script.done(3, 1, process_set=1)
    scripts[0].submit(10, "a", process_set=1)
    (stall,) = find_stalls(by_rank(*(s.recording(9_000) for s in scripts)), 3)
    assert (stall.ready, stall.missing) == ((0,), (1,))


def test_a_rank_that_stands_still_in_a_collective() -> None:
    script = Script().submit(1, "a").start(2, 1, ["a"]).event(EventKind.WAIT, 3, 1)
    (stuck,) = find_stuck(by_rank(script.recording(9_002)))
    assert (stuck.rank, stuck.waiting_for, stuck.age_ns) == (0, 1, 9000 * MS)
    script.done(9_001, 1)
    assert find_stuck(by_rank(script.recording(9_002))) == []


def test_the_last_operations_come_last_first() -> None:
    script = Script().submit(1, "a").start(2, 1, ["a"]).done(3, 1).submit(4, "b")
    recording = script.recording(9)
    last = last_operations(recording, 5)
    assert [recording.name_of(operation.label) for operation in last] == ["b", "a"]


def test_deaths_and_errors_in_the_order_of_the_clock() -> None:
    late = Script(0, 3).event(EventKind.ALARM, 50, 2).event(EventKind.FAILED, 51, value=3)
    early = Script(1, 3).event(EventKind.ALARM, 40, 2).event(EventKind.FAILED, 41, value=3)
    recordings = by_rank(
        late.recording(60, "error", detail="second"), early.recording(60, "error", detail="first")
    )
    assert find_deaths(recordings) == [2]
    failed = first_error(recordings)
    assert failed is not None
    assert failed.detail == "first"
    assert find_deaths(training([1, 1])) == []
    assert first_error(training([1, 1])) is None


def test_what_ranks_gave_in_differently() -> None:
    one = Script(0).submit(1, "a", shape=(4, 8)).failed(2, "a", ErrorCode.MISMATCH)
    other = Script(1).submit(1, "a", shape=(4, 7)).failed(2, "a", ErrorCode.MISMATCH)
    (mismatch,) = find_mismatches(by_rank(one.recording(9), other.recording(9)))
    assert mismatch.name == "a"
    assert {rank: label.shape for rank, label in mismatch.labels.items()} == {
        0: (4, 8),
        1: (4, 7),
    }
    assert find_mismatches(training([1, 1])) == []


def one_at_a_time(size: int = 400) -> dict[int, Recording]:
    script = Script(0, 1)
    for step in range(10):
        for number in range(10):
            at, bucket = step * 100 + number * 3, step * 10 + number
            script.submit(at, f"g{number}", size).start(at + 1, bucket, [f"g{number}"])
            script.done(at + 2, bucket)
        script.submit(step * 100 + 60, "barrier.b", kind=BARRIER)
        script.start(step * 100 + 61, 1000 + step, ["barrier.b"]).done(step * 100 + 62, 1000 + step)
    return {0: script.recording(5_000)}


def test_why_tensors_run_alone() -> None:
    recordings = one_at_a_time()
    steps = find_steps(recordings)
    assert steps is not None
    for threshold, why in (
        (1 << 20, WhyAlone.NOTHING_ELSE),
        (0, WhyAlone.OFF),
        (400, WhyAlone.LARGE),
    ):
        fusion = find_fusion(recordings, steps, threshold)
        assert fusion is not None
        assert {alone.why for alone in fusion.alone} == {why}
        assert len(fusion.alone) == 10
        assert fusion.buckets == 11


def test_tensors_that_run_together_are_not_alone() -> None:
    recordings = training([10, 10], tensors=6)
    steps = find_steps(recordings)
    assert steps is not None
    fusion = find_fusion(recordings, steps, 1 << 20)
    assert fusion is not None
    assert (fusion.alone, fusion.buckets, fusion.tensors) == ((), 1, 6)
    assert fusion.bucket_bytes == 2400


def test_tensors_that_others_do_not_have_yet() -> None:
    script = Script(0, 1)
    for step in range(10):
        script.submit(step * 100, "a").submit(step * 100, "b")
        for number, name in enumerate(("a", "b")):
            at, bucket = step * 100 + 10 * number, step * 2 + number
            script.start(at + 1, bucket, [name]).done(at + 2, bucket)
        script.submit(step * 100 + 15, "c")
        script.start(step * 100 + 16, 500 + step, ["c"]).done(step * 100 + 17, 500 + step)
    recordings = {0: script.recording(5_000)}
    steps = find_steps(recordings)
    assert steps is not None
    fusion = find_fusion(recordings, steps, 1 << 20)
    assert fusion is not None
    assert {alone.label.name: alone.why for alone in fusion.alone} == {
        "a": WhyAlone.OTHERS_NOT_READY,
        "b": WhyAlone.NOTHING_ELSE,
        "c": WhyAlone.NOTHING_ELSE,
    }


def test_clocks_of_hosts_are_aligned() -> None:
    scripts = [Script(0), Script(1, ahead_ms=250)]
    for step in range(10):
        begin = step * 20
        late = step % 2  # each of the two hosts comes last now and then
        for script in scripts:
            script.submit(begin + (1 if script.rank == late else 0), "g")
            script.start(begin + 1.01, step, ["g"]).done(begin + 1.5, step)
    recordings = by_rank(*(script.recording(300) for script in scripts))
    clocks = align_clocks(recordings, [[0], [1]])
    assert clocks[0].error_ns == 0
    assert abs(clocks[1].ahead_ns - 250 * MS) <= clocks[1].error_ns < 0.1 * MS


def test_clocks_of_hosts_that_did_nothing_together_are_not_known() -> None:
    assert set(
        align_clocks(by_rank(*(s.recording(9) for s in (Script(0), Script(1)))), [[0], [1]])
    ) == {0}


def test_the_stack_of_the_program_is_found() -> None:
    calls = main_thread(STACKS)
    assert [call.line for call in calls] == [5, 7, 41, 88]
    call = own_call(calls)
    assert call is not None
    assert (call.path, call.line, call.function) == ("/home/me/train.py", 41, "validate")
    assert main_thread("") == []
    assert own_call(calls[:2]) is None
    assert own_call([replace(calls[1], path=errors.__file__)]) is None  # installed editable
    generated = replace(calls[0], path="<string>", line=12)  # by dataclasses
    assert own_call([generated, *calls]) == call
    assert own_call([generated]) == generated  # of python -c


def test_recordings_are_told_apart_by_world_and_processes() -> None:
    worlds = collect_worlds(
        [
            Script(0, world="world1/1").recording(1, "error"),
            Script(0, world="world2/1").recording(5, "request", stacks="old"),
            Script(0, world="world2/1").recording(7, "end"),
            Script(1, world="world2/1").recording(6, "end"),
            Script(0, world="world2/1", ranks=["another", "job"]).recording(3, "end"),
        ]
    )
    assert [(world.number, sorted(world.recordings)) for world in worlds] == [
        ("world1/1", [0]),
        ("world2/1", [0]),
        ("world2/1", [0, 1]),
    ]
    last = worlds[-1]
    assert last.recordings[0].reason == "end"
    assert (last.size, last.missing, worlds[0].missing) == (2, (), (1,))
