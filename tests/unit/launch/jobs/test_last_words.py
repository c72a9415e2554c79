"""The rank that is named as the cause, from what ranks printed and how they ended."""

from __future__ import annotations

import signal

import pytest

from horovod.core.base.rank_info import RankInfo
from horovod.launch.jobs.last_words import LastWords, worker_failure
from horovod.launch.model.job_plan import ElasticPlan, JobOutcome, JobPlan, Limits
from horovod.launch.workers.worker_group import Worker

RAISED = '  File "train.py", line 19, in <module>\nValueError: bad batch\n'
LOST = '  File "train.py", line 8, in work\nhorovod.errors.PeerLostError: rank 1 has shut down\n'
NAMED = "Rank 1 raised ValueError: bad batch (train.py:19)\n"


def ended(*ranks: tuple[int, str]) -> tuple[LastWords, list[Worker]]:
    """Ranks with their exit codes, and what each has printed."""
    words, workers = LastWords(), []
    for rank, (exit_code, printed) in enumerate(ranks):
        info = RankInfo(rank, len(ranks), rank, len(ranks), 0, 1, "host")
        workers.append(Worker(rank, info, 100 + rank, exit_code))
        feed = words.watch(workers[-1])
        for begin in range(0, len(printed), 7):
            feed(printed[begin : begin + 7].encode())
    return words, workers


def test_the_exception_is_in_the_text_before_the_lines_for_tools() -> None:
    words, workers = ended((-signal.SIGTERM, ""), (1, RAISED))
    outcome = words.explained(JobPlan(), worker_failure(workers[1]), is_killed=False)
    assert outcome.text.endswith(f"{NAMED}Process name: 1\nExit code: 1\n")
    assert [failure.rank for failure in outcome.failures] == [1, 0]


def test_what_the_launcher_repeats_moves_no_cursor() -> None:
    words, workers = ended((0, ""), (1, RAISED.replace("bad", "\x1b[2Jbad\x1b]0;x\x07")))
    outcome = words.explained(JobPlan(), worker_failure(workers[1]), is_killed=False)
    assert "Rank 1 raised ValueError: \\x1b[2Jbad\\x1b]0;x\\x07 batch (train.py:19)" in outcome.text
    assert all(line.isprintable() for line in outcome.failures[0].lines)


@pytest.mark.parametrize(
    ("cause", "exit_code"),
    [
        ((1, RAISED), 1),
        ((-signal.SIGTERM, RAISED), -15),
        ((3, ""), 3),
        ((-signal.SIGSEGV, ""), -11),
    ],
)
def test_a_rank_that_lost_its_peer_is_not_the_cause(cause: tuple[int, str], exit_code: int) -> None:
    words, workers = ended((1, LOST), cause, (-signal.SIGTERM, "x"), (0, RAISED), (1, LOST))
    outcome = words.explained(JobPlan(), worker_failure(workers[0]), is_killed=False)
    assert (outcome.worker, outcome.exit_code) == (1, exit_code)
    assert outcome.text.endswith(f"Process name: 1\nExit code: {exit_code}\n")
    assert (NAMED in outcome.text) == (cause[1] == RAISED)
    assert [failure.lost_its_peer for failure in outcome.failures] == [False, True, False, True]


def test_without_another_cause_the_first_failure_stays_the_first() -> None:
    words, workers = ended((1, LOST), (-signal.SIGKILL, RAISED))
    outcome = words.explained(JobPlan(), worker_failure(workers[0]), is_killed=True)
    assert (outcome.worker, outcome.exit_code) == (0, 1)
    assert "Rank 0 lost its peer: rank 1 has shut down (train.py:8)\n" in outcome.text


def test_an_elastic_job_and_an_interrupted_one_keep_their_texts() -> None:
    words, _ = ended((1, LOST), (1, RAISED))
    elastic = JobPlan(elastic=ElasticPlan(Limits(1, 1, None, None, 1.0, None)))
    outcome = words.explained(elastic, JobOutcome(1, "the end\n", worker=1), is_killed=False)
    assert (
        outcome.text == "horovodrun: rank 1 raised ValueError: bad batch (train.py:19)\nthe end\n"
    )
    assert outcome.failures[0].rank == 1
    interrupted = JobOutcome(130)
    assert words.explained(JobPlan(), interrupted, is_killed=False) is interrupted
