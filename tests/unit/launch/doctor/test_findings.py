"""What the doctor says about recordings that were made up for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import Script, training, training_scripts, world_of

from horovod.errors import ErrorCode
from horovod.launch.doctor.examination import Examination, examine
from horovod.launch.doctor.findings import Finding, Severity
from horovod.launch.doctor.jobs import Evidence
from horovod.launch.doctor.report import as_json, as_text
from horovod.trace.failures import RankFailure
from horovod.trace.outcome import Outcome
from horovod.trace.presence import RankState
from horovod.trace.recording import EventKind, Recording, Usage, WaitPhase

STACKS = """Current thread 0x2 (most recent call first):
  File "/env/lib/python3.11/site-packages/horovod/flights.py", line 7 in submit
  File "/home/me/train.py", line 41 in validate
"""
RUNNING = RankState.RUNNING


def look(
    recordings: Mapping[int, Recording] | Sequence[Recording],
    states: Mapping[int, RankState] | None = None,
) -> Examination:
    if not isinstance(recordings, Mapping):
        recordings = {recording.rank: recording for recording in recordings}
    return examine([world_of(recordings)], states or {})


def codes(examination: Examination) -> list[str]:
    return [finding.code for finding in examination.findings]


def only(examination: Examination, code: str) -> Finding:
    (finding,) = [finding for finding in examination.findings if finding.code == code]
    return finding


def test_an_even_training_is_healthy() -> None:
    examination = look(training([10, 10.5]))
    assert examination.is_healthy
    assert codes(examination) == []
    assert [row.state for row in examination.rows] == ["ended", "ended"]


def test_too_few_steps_are_said_to_be() -> None:
    examination = look(training([10, 30], steps=3))
    assert examination.is_healthy
    assert codes(examination) == ["too-few-steps"]


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_rank_is_named_with_how_much(slow: int) -> None:
    examination = look(training([20 if rank == slow else 10 for rank in range(2)]))
    assert not examination.is_healthy
    finding = only(examination, "slow-rank")
    assert finding.ranks == (slow,)
    assert f"Rank {slow} (pid {100 + slow} on node) is slow" in finding.text
    assert "10 ms (48%) shorter" in finding.text
    assert "19 of 19 steps" in finding.text
    assert ("checkpoints" in finding.advice) == (slow == 0)
    assert finding.evidence["extra_seconds"] == pytest.approx(0.01)


def test_all_ranks_of_a_slow_machine_are_named_together() -> None:
    examination = look(training([10, 10, 20, 20, 10, 10], hosts=[[0, 1], [2, 3], [4, 5]]))
    finding = only(examination, "slow-rank")
    assert finding.ranks == (2, 3)
    assert "one machine" in finding.advice


def test_turns_are_no_ranks_fault() -> None:
    turns = [[20.0 if step % 2 == rank else 10.0 for step in range(30)] for rank in range(2)]
    examination = look(training(turns, steps=30))
    assert examination.is_healthy
    assert codes(examination) == ["uneven"]


def test_much_transport_is_advised_against() -> None:
    examination = look(training([5, 5], run_ms=5))
    assert codes(examination) == ["transport"]
    assert "5 ms (50%)" in examination.findings[0].text
    assert "--check-network" not in examination.findings[0].advice
    across = look(training([5, 5], run_ms=5, hosts=[[0], [1]]))
    assert "--check-network" in across.findings[0].advice


def test_a_network_that_limits_the_steps_is_named_with_what_would_help() -> None:
    def found(**facts: Any) -> Finding:
        scripts = training_scripts([2, 2], run_ms=8, hosts=[[0], [1]], **facts)
        for step in range(20):
            for script in scripts:
                script.waited((step + 1) * 10.01 - 0.5, 1 - script.rank, 7.1, WaitPhase.LINK)
        return only(look([script.recording(9_000) for script in scripts]), "link")

    finding = found()
    assert "for 7.1 ms (71%) of a step of 10 ms" in finding.text
    assert "int8 would leave about 39%" in finding.advice
    assert "sync_every=100 would leave about 2%" in finding.advice
    coded = found(settings={"HOROVOD_LINK_COMPRESSION": "int8"})
    assert "int8" not in coded.advice
    assert "DiLoCo" in coded.advice


def test_a_slow_link_is_named() -> None:
    scripts = training_scripts([10, 10, 10], run_ms=5, hosts=[[0], [1], [2]])
    for step in range(20):
        for script in scripts:
            for peer in {0, 1, 2} - {script.rank}:
                at = (step + 1) * 15.01 - peer
                script.waited(at, peer, 4 if peer == 1 else 0.2, WaitPhase.LINK)
    finding = only(look([script.recording(9_000) for script in scripts]), "slow-link")
    assert finding.ranks == (1,)
    assert "--check-network" in finding.advice


def diverged(**more: Any) -> list[Script]:
    scripts = training_scripts([10, 10], **more)
    scripts[0].submit(300, "allreduce.grad")
    scripts[1].submit(301, "allreduce.loss")
    return scripts


def test_ranks_that_have_gone_different_ways() -> None:
    recordings = [s.recording(12_300, "request", stacks=STACKS) for s in diverged()]
    examination = look(recordings, {0: RUNNING, 1: RUNNING})
    assert not examination.is_healthy
    finding = only(examination, "divergence")
    assert "rank 0 (pid 100 on node) in allreduce 'grad', for 12 s" in finding.text
    assert "rank 1 (pid 101 on node) in allreduce 'loss'" in finding.text
    assert "or loops with different numbers of steps (rank 0 is in /" in finding.advice
    assert "rank 1 is in /home/me/train.py line 41 (validate)" in finding.advice
    assert '  File "/home/me/train.py", line 41, in validate' in finding.lines
    assert not any("flights.py" in line for line in finding.lines)
    assert finding.ranks == (0, 1)


def test_a_short_wait_is_no_hang() -> None:
    recordings = [script.recording(1_500, "request") for script in diverged()]
    assert look(recordings, {0: RUNNING, 1: RUNNING}).is_healthy
    slow_steps = training_scripts([1000, 1000])
    slow_steps[0].submit(21_000, "allreduce.g0")
    recordings = [script.recording(25_000, "request") for script in slow_steps]
    assert look(recordings, {0: RUNNING, 1: RUNNING}).is_healthy


def test_a_rank_that_does_something_else() -> None:
    scripts = training_scripts([10, 10])
    scripts[0].submit(300, "allreduce.grad").submit(300, "allreduce.other")
    recordings = [s.recording(12_300, "request", stacks=STACKS) for s in scripts]
    finding = only(look(recordings, {0: RUNNING, 1: RUNNING}), "stall")
    assert "'grad' and 1 more have waited for 12 s" in finding.text
    assert "rank 1 (pid 101 on node) did not" in finding.text
    assert "Rank 1 has last submitted allreduce 'g3'" in finding.text
    assert "train.py line 41" in finding.advice
    assert finding.ranks == (1,)
    assert finding.evidence["missing"] == [1]


def test_an_operation_of_a_process_group_is_called_by_its_number() -> None:
    scripts = training_scripts([10, 10])
    scripts[0].submit(300, "all_reduce number 17 of group default")
    finding = only(look([s.recording(12_300, "request") for s in scripts]), "stall")
    assert finding.text.startswith("all_reduce number 17 of group default has waited for 12 s: ")


def test_a_rank_that_ended_its_loop_sooner() -> None:
    scripts = training_scripts([10, 10])
    scripts[0].submit(300, "allreduce.grad")
    scripts[1].event(EventKind.LEFT, 301)
    recordings = [scripts[0].recording(12_300, "request"), scripts[1].recording(302, "end")]
    examination = look(recordings, {0: RUNNING})
    finding = only(examination, "stall")
    assert "Rank 1 has shut down" in finding.text
    assert "join()" in finding.advice
    assert [row.state for row in examination.rows] == ["running", "ended"]


def test_a_rank_without_a_recording() -> None:
    scripts = training_scripts([10, 10])
    scripts[0].submit(300, "allreduce.grad")
    examination = look([scripts[0].recording(12_300, "request")], {0: RUNNING, 1: RUNNING})
    assert {"stall", "missing"} <= set(codes(examination))
    missing = only(examination, "missing")
    assert "Ranks 1 did not answer in time" in missing.text
    assert "HOROVOD_RECORDER_DIR" in missing.advice


def test_a_stopped_process_is_said_to_be() -> None:
    recordings = [script.recording(12_300, "request") for script in training_scripts([10, 10])]
    finding = only(look(recordings, {0: RUNNING, 1: RankState.STOPPED}), "stopped")
    assert finding.ranks == (1,)
    assert "kill -CONT" in finding.advice


def test_a_rank_that_stands_still_in_a_collective() -> None:
    scripts = training_scripts([10, 10])
    for script in scripts:
        script.submit(300, "allreduce.grad").start(301, 50, ["allreduce.grad"])
    scripts[0].event(EventKind.WAIT, 302, 1)
    recordings = [script.recording(12_301, "request") for script in scripts]
    finding = only(look(recordings, {0: RUNNING, 1: RUNNING}), "stuck")
    assert "waiting for rank 1" in finding.text
    assert finding.ranks == (1,)


def test_a_death_is_the_cause_and_not_what_followed() -> None:
    scripts = training_scripts([10, 10])
    scripts[0].event(EventKind.ALARM, 300, 1).event(EventKind.FAILED, 301, value=3)
    scripts[1].submit(299, "allreduce.g0")
    recordings = [
        scripts[0].recording(302, "error", detail="rank 1 died"),
        scripts[1].recording(302, "death", written_by=0),
    ]
    examination = look(recordings)
    assert codes(examination) == ["death", "lost-peer"]
    finding = examination.findings[0]
    assert finding.ranks == (1,)
    assert any("'g0'" in line and "waiting for others" in line for line in finding.lines)
    assert [row.state for row in examination.rows] == ["lost peer", "died"]


def test_the_rank_that_raised_an_exception_is_the_cause_and_not_its_victims() -> None:
    scripts = training_scripts([10, 10, 10])
    for rank in (0, 2):
        scripts[rank].submit(300, "allreduce.g0").event(EventKind.FAILED, 9_000, value=3)
    scripts[1].event(EventKind.LEFT, 8_999)
    recordings = [
        scripts[0].recording(9_001, "error", detail="rank 1 has shut down"),
        scripts[1].recording(9_001),
        scripts[2].recording(9_001, "error", detail="rank 1 has shut down"),
    ]
    raised = RankFailure(1, 1, ("last line",), "ValueError", "bad batch", "train.py", 19)
    lost = RankFailure(0, 1, (), "horovod.errors.PeerLostError", "rank 1 has shut down")
    outcome = Outcome(1, "it failed", 0, (raised, lost))
    world = world_of({recording.rank: recording for recording in recordings})
    examination = examine([world], {}, outcome)
    assert codes(examination)[:2] == ["exception", "lost-peer"]
    exception, victims = examination.findings[:2]
    assert exception.text.startswith("Rank 1 (pid 101 on node) raised ValueError: bad batch (")
    assert (exception.ranks, exception.lines[-1]) == ((1,), "  last line")
    assert exception.evidence["line"] == 19
    assert exception.advice == "Look at that line: the other ranks have ended because of it."
    names = "Rank 0 (pid 100 on node) and rank 2 (pid 102 on node)"
    assert victims.text == f"{names} lost their peer."
    states = [row.state for row in examination.rows]
    assert states == ["lost peer", "failed", "lost peer"]


def test_an_exception_of_all_ranks_has_no_victims() -> None:
    recordings = [script.recording(300) for script in training_scripts([10, 10])]
    raised = [RankFailure(rank, 1, (), "ValueError", "x", "train.py", 19) for rank in (0, 1)]
    world = world_of({recording.rank: recording for recording in recordings})
    examination = examine([world], {}, Outcome(1, "it failed", 0, tuple(raised)))
    finding = only(examination, "exception")
    assert (finding.ranks, finding.advice) == ((0, 1), "Look at that line.")


def test_who_ended_a_hang_is_not_its_cause() -> None:
    scripts = diverged()
    scripts[0].event(EventKind.ALARM, 9_000, 1).failed(9_001, "allreduce.grad", 3)
    scripts[0].event(EventKind.FAILED, 9_002, value=3)
    recordings = [
        scripts[0].recording(9_003, "error", detail="rank 1 died"),
        scripts[1].recording(9_003, "death", written_by=0),
    ]
    examination = look(recordings)
    assert codes(examination) == ["divergence", "death"]
    assert examination.findings[1].severity is Severity.NOTE


def test_a_process_that_is_gone_without_a_word() -> None:
    alone = {0: training([10, 10])[0]}
    examination = look(alone, {1: RankState.GONE})
    assert only(examination, "gone").ranks == (1,)


def test_a_mismatch_says_what_each_rank_gave() -> None:
    scripts = training_scripts([10, 10])
    for script, shape in zip(scripts, ((4, 8), (4, 7)), strict=True):
        script.submit(300, "allreduce.fc", shape=shape)
        script.failed(301, "allreduce.fc", ErrorCode.MISMATCH)
    finding = only(look([script.recording(302) for script in scripts]), "mismatch")
    assert "rank 1 (pid 101 on node): allreduce of shape [4, 7], float32" in finding.text


def test_earlier_worlds_are_told_of() -> None:
    first = Script(0, 1, world="world1/1").event(EventKind.ALARM, 1, 0).recording(2, "error")
    last = Script(0, 1, world="world2/1").recording(9)
    examination = examine([world_of({0: first}), world_of({0: last})], {})
    assert only(examination, "earlier-worlds").lines == (
        "world world1/1 of 1: rank 0 (pid 100 on node) died",
    )


@pytest.mark.parametrize(
    ("settings", "facts", "code"),
    [
        ({"HOROVOD_DEBUG_COLLECTIVES": "1"}, {}, "debug"),
        ({"HOROVOD_CYCLE_TIME": "5"}, {}, "cycle-time"),
        ({"HOROVOD_CYCLE_TIME": "0.1"}, {}, ""),
        ({"HOROVOD_CACHE_CAPACITY": "2"}, {}, "cache"),
        ({"HOROVOD_CACHE_CAPACITY": "4"}, {}, ""),
        ({}, {"cores": 1}, "cores"),
        ({}, {"cores": 2}, ""),
        ({}, {"cores": 4, "threads": "4"}, "threads"),
        ({}, {"cores": 4, "threads": "2"}, ""),
        ({"HOROVOD_OF_LATER": "1"}, {}, ""),
    ],
)
def test_settings_worth_changing(
    settings: dict[str, str], facts: dict[str, Any], code: str
) -> None:
    examination = look(training([10, 10], settings=settings, **facts))
    assert examination.is_healthy
    assert codes(examination) == [code] * bool(code)


def test_the_flag_that_helps_is_named() -> None:
    examination = look(training([10, 10], settings={"HOROVOD_CACHE_CAPACITY": "2"}, tensors=5))
    assert "--cache-capacity 8" in examination.findings[0].advice


@pytest.mark.parametrize(
    ("kernel_s", "pages", "settings", "is_found"),
    [
        (3, 2_000_000, {}, True),
        (3, 2_000_000, {"HOROVOD_KEEP_MEMORY": "1"}, False),
        (3, 20_000, {}, False),  # it sends over the network, perhaps
        (0.3, 2_000_000, {}, False),  # huge pages
    ],
)
def test_memory_that_is_handed_out_in_every_step(
    kernel_s: float, pages: int, settings: dict[str, str], is_found: bool
) -> None:
    usage = Usage(20 * 10**9, 10 * 10**9, round(kernel_s * 10**9), pages)
    recordings = training([10, 10], settings=settings)
    examination = look([recordings[0], replace(recordings[1], usage=usage)])
    assert codes(examination) == ["page-faults"] * is_found
    if is_found:
        finding = only(examination, "page-faults")
        assert finding.ranks == (1,)
        assert finding.text.startswith("Rank 1 (pid 101 on node) gets 1,101 pages")
        assert "30% of its CPU time" in finding.text
        assert "--keep-memory" in finding.advice


def test_tensors_without_names() -> None:
    scripts = [Script(rank) for rank in range(2)]
    for script in scripts:
        for step in range(20):
            script.submit(step * 10, f"allreduce.noname.{step}")
    assert "unnamed" in codes(look([script.recording(250) for script in scripts]))


@pytest.mark.parametrize(
    ("threshold", "words"),
    [("0", "--fusion-threshold-mb 128"), ("", "grouped_allreduce"), ("300", "threshold-mb 128")],
)
def test_many_small_collectives(threshold: str, words: str) -> None:
    settings = {"HOROVOD_FUSION_THRESHOLD": threshold} if threshold else {}
    script = Script(0, 1, settings=settings)
    for step in range(10):
        for number in range(10):
            at, bucket = step * 100 + number * 3, step * 10 + number
            script.submit(at, f"g{number}").start(at + 1, bucket, [f"g{number}"])
            script.done(at + 2, bucket).blocked(at + 2, 2)
    finding = only(look([script.recording(5_000)]), "small-buckets")
    assert words in finding.advice
    assert "10 small tensors" in finding.text


def test_what_is_printed(tmp_path: Path) -> None:
    recordings = training([10, 20, 10])
    examination = look(recordings, dict.fromkeys(range(3), RUNNING))
    evidence = Evidence(tmp_path / "job-7", (examination.world,), {0: RUNNING})
    text = as_text(evidence, examination, has_colour=False)
    assert text.startswith("Job job-7: 3 ranks, running\n")
    assert "PROBLEM  Rank 1 (pid 101 on node) is slow" in text
    assert "rank 1 (pid 101 on node)   running   21 ms   20 ms  95%" in text
    assert "\x1b[" not in text
    assert "\x1b[" in as_text(evidence, examination, has_colour=True)
    result = json.loads(json.dumps(as_json(evidence, examination)))
    assert (result["is_healthy"], result["steps"], result["size"]) == (False, 19, 3)
    assert result["findings"][0]["code"] == "slow-rank"
    assert result["ranks"][1]["step"]["compute_seconds"] == pytest.approx(0.02)


def test_a_large_job_is_a_short_table(tmp_path: Path) -> None:
    compute = [10.0] * 200
    compute[150] = 20
    examination = look(training(compute, steps=8, tensors=1))
    evidence = Evidence(tmp_path, (examination.world,), {})
    text = as_text(evidence, examination, has_colour=False)
    assert only(examination, "slow-rank").ranks == (150,)
    assert len(text.splitlines()) < 40
    assert "rank 150 (pid 250 on node)" in text
    assert "16 of 200 ranks" in text


def test_a_healthy_job_is_said_to_be(tmp_path: Path) -> None:
    examination = look(training([10, 10]))
    text = as_text(Evidence(tmp_path, (examination.world,), {}), examination, has_colour=False)
    assert "Nothing is wrong, and nothing would help." in text


@pytest.mark.parametrize("behind_s", [0, 5])
def test_times_of_day_that_differ(behind_s: int) -> None:
    hosts = [[0], [1]]
    scripts = [Script(0, hosts=hosts), Script(1, ahead_ms=250, hosts=hosts)]
    for step in range(10):
        for script in scripts:
            arrival = step * 20 + (script.rank == step % 2) * 0.2
            script.submit(arrival, "g").start(step * 20 + 0.21, step, ["g"])
            script.done(step * 20 + 0.3, step)
    recordings = [script.recording(300) for script in scripts]
    late = replace(
        recordings[1],
        written_epoch_ns=recordings[1].written_epoch_ns - behind_s * 10**9,
    )
    found = [f for f in look([recordings[0], late]).findings if f.code == "clocks"]
    assert [finding.lines for finding in found] == [
        ("rank 1 (pid 101 on node): 5 s behind",)
    ] * bool(behind_s)
