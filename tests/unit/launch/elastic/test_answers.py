"""Whose answers an elastic ``horovod.run`` keeps, and what its caller gets in the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO

import pytest

from horovod.core.base.rank_info import RankInfo
from horovod.launch.calls.call import (
    ANSWER_FD,
    CALL_FD,
    CallFiles,
    Failure,
    memory_file,
    read_failure,
    read_result,
    write_failure,
    write_result,
)
from horovod.launch.elastic.answers import Answers
from horovod.launch.model.job_plan import JobOutcome

SUCCESS = JobOutcome(0)


def slot(rank: int) -> RankInfo:
    return RankInfo(rank, 9, rank, 9, 0, 1, "here")


class Desk:
    """A caller who waits for two results, and the workers' answers."""

    def __init__(self, files: ExitStack) -> None:
        self.wanted: list[BinaryIO] = [files.enter_context(memory_file()) for _ in range(2)]
        self.answers = Answers(CallFiles(77, tuple(file.fileno() for file in self.wanted)))

    def world(self, number: int, *workers: int) -> None:
        for rank, worker in enumerate(workers):
            self.answers.note_position(number, worker, slot(rank))

    def succeeds(self, worker: int) -> bool:
        write_result(self.answers.for_worker(worker)[ANSWER_FD], f"of worker {worker}")
        return self.answers.note_end(worker, 0)

    def fails(self, worker: int) -> bool:
        failure = Failure(f"raised {worker}", "", 1, 0)
        write_failure(self.answers.answer_fd(worker), failure)
        return self.answers.note_end(worker, 1)

    def delivered(self) -> list[str]:
        assert self.answers.judged(SUCCESS) is SUCCESS
        self.answers.deliver(SUCCESS)
        return [read_result(file) for file in self.wanted]

    def told(self, worker: int | None) -> str | None:
        self.answers.deliver(JobOutcome(1, worker=worker))
        failure = read_failure(self.wanted[0])
        return failure and failure.what


@pytest.fixture
def desk() -> Iterator[Desk]:
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as files:
        desk = Desk(files)
        yield desk
        desk.answers.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_worker_has_the_call_and_a_file_of_its_own(desk: Desk) -> None:
    first, second = desk.answers.for_worker(4), desk.answers.for_worker(9)
    assert first[CALL_FD] == second[CALL_FD] == 77
    assert first[ANSWER_FD] != second[ANSWER_FD]
    assert desk.answers.answer_fd(4) == first[ANSWER_FD]


def test_ranks_of_the_last_world_count(desk: Desk) -> None:
    desk.world(0, 0, 1, 2)
    desk.world(1, 0, 1, 2)
    desk.world(2, 5, 2, 1)
    assert desk.succeeds(0)  # too late: the job has gone on without it
    assert all(desk.succeeds(worker) for worker in (2, 5, 1))
    assert desk.delivered() == ["of worker 5", "of worker 2"]


def test_without_a_world_the_ranks_that_were_foretold_count(desk: Desk) -> None:
    desk.world(0, 0, 1)
    desk.answers.note_position(0, 2, slot(1))
    assert all(desk.succeeds(worker) for worker in (0, 1, 2))
    assert desk.delivered() == ["of worker 0", "of worker 1"]


@pytest.mark.parametrize("exit_code", [0, -11])
def test_a_wanted_rank_without_a_result(desk: Desk, exit_code: int) -> None:
    desk.world(1, 3, 4, 5)
    assert desk.succeeds(3)
    fd = desk.answers.answer_fd(4)
    if exit_code:
        write_result(fd, "and then it crashed")
    assert not desk.answers.note_end(4, exit_code)
    outcome = desk.answers.judged(SUCCESS)
    assert (outcome.status, outcome.rank_info, outcome.worker) == (1, slot(1), 4)
    assert "rank 1 has left no result" in outcome.text


def test_a_world_that_is_too_small(desk: Desk) -> None:
    desk.world(1, 3)
    assert desk.succeeds(3)
    assert "rank 1 has left no result" in desk.answers.judged(SUCCESS).text


def test_a_failure_that_ended_the_job_is_told(desk: Desk) -> None:
    assert not desk.fails(3)
    assert not desk.fails(4)
    assert desk.told(3) == "raised 3"


@pytest.mark.parametrize("worker", [None, 9])
def test_nothing_is_told_of_a_worker_that_said_nothing(desk: Desk, worker: int | None) -> None:
    desk.answers.answer_fd(9)
    assert not desk.answers.note_end(9, -9)
    desk.fails(3)
    assert desk.told(worker) is None


def test_of_many_failures_the_last_are_kept(desk: Desk) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for worker in range(40):
        desk.fails(worker)
    assert len(os.listdir("/proc/self/fd")) == before + 16
    assert desk.told(3) is None
    assert desk.told(24) == "raised 24"
