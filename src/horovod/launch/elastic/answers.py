"""The answers of the workers of an elastic ``horovod.run``, until it is known which of them count.

Workers come and go by number and change their ranks, while the caller waits for the results of some
ranks of the last world. So each worker answers into a file of its own, made when it starts. The
file is dropped when the worker ends without a result. The last failures are kept, since one of them
may turn out to be why the job failed. In the end the answers are copied into the caller's files.
"""

from __future__ import annotations

import shutil
from typing import BinaryIO

from horovod.core.base.rank_info import RankInfo
from horovod.launch.calls.call import CallFiles, WorkerFiles, is_failure, is_result, memory_file
from horovod.launch.model.job_plan import JobOutcome

_MOST_FAILURES = 16


class Answers(WorkerFiles):
    """See ``WorkerFiles``. ``caller`` has the caller's files, one for each rank.

    ``least`` results are needed. More are delivered if the last world has more ranks.
    """

    def __init__(self, caller: CallFiles, least: int | None = None) -> None:
        self._caller = caller
        self.call_fd = caller.call_fd
        self._least = len(caller.answer_fds) if least is None else least
        self._files: dict[int, BinaryIO] = {}  # of living workers, and of those with a result
        self._failures: dict[int, BinaryIO] = {}
        self._world = 0
        self._positions: dict[int, RankInfo] = {}  # in that world

    def answer_fd(self, worker: int) -> int:
        """See ``WorkerFiles``."""
        if worker not in self._files:
            self._files[worker] = memory_file()
        return self._files[worker].fileno()

    def note_position(self, world: int, worker: int, rank_info: RankInfo) -> None:
        """A worker has this position in a world; in world 0 the position is provisional."""
        if world > self._world:
            self._world = world
            self._positions.clear()
        if world == self._world:
            self._positions[worker] = rank_info

    def note_end(self, worker: int, exit_code: int) -> bool:
        """A worker has ended. Returns whether it left a result."""
        file = self._files.pop(worker, None)
        if file is None:
            return False
        if exit_code == 0 and is_result(file.fileno()):
            self._files[worker] = file
            return True
        if is_failure(file.fileno()):
            self._failures[worker] = file
            is_full = len(self._failures) > _MOST_FAILURES
            file = self._failures.pop(next(iter(self._failures))) if is_full else None
        if file is not None:
            file.close()
        return False

    def judged(self, success: JobOutcome) -> JobOutcome:
        """The outcome of a job whose workers have finished: a failure if a result is missing."""
        by_rank = self._by_rank()
        for rank in range(self._wanted):
            worker = by_rank.get(rank)
            if worker is None or not self._has_result(worker):
                rank_info = None if worker is None else self._positions[worker]
                text = f"horovodrun: training has ended, but rank {rank} has left no result\n"
                return JobOutcome(1, text, rank_info, worker=worker)
        return success

    def deliver(self, outcome: JobOutcome) -> None:
        """Give the caller the results, or the failure that ``outcome`` is about."""
        wanted = self._caller.answer_fds[: self._wanted]
        if outcome.status != 0:
            if outcome.worker is not None and outcome.worker in self._failures:
                _copy(self._failures[outcome.worker], wanted[0])
            return
        by_rank = self._by_rank()
        for rank, fd in enumerate(wanted):
            with self._files.pop(by_rank[rank]) as file:
                _copy(file, fd)

    def close(self) -> None:
        """Close all files."""
        for file in (*self._files.values(), *self._failures.values()):
            file.close()

    @property
    def _wanted(self) -> int:
        size = max((rank_info.size for rank_info in self._positions.values()), default=0)
        return max(self._least, min(size, len(self._caller.answer_fds)))

    def _by_rank(self) -> dict[int, int]:
        """The last world's workers; of several with a provisional rank the first has it."""
        return {rank_info.rank: worker for worker, rank_info in reversed(self._positions.items())}

    def _has_result(self, worker: int) -> bool:
        return worker in self._files and is_result(self._files[worker].fileno())


def _copy(source: BinaryIO, fd: int) -> None:
    source.seek(0)
    with open(fd, "wb", closefd=False) as target:
        shutil.copyfileobj(source, target, 1024 * 1024)
