"""The worker that made a job fail, and its exception, found in what workers printed last."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from horovod.launch.model.job_plan import JobOutcome, JobPlan, failure_text
from horovod.launch.workers.processes import describe_exit
from horovod.launch.workers.worker_group import Worker
from horovod.trace.failures import TAIL_BYTES, RankFailure, failure_of

_MOST_TAILS = 4096
_MOST_FAILURES = 16  # in an outcome


@dataclass
class _Tail:
    """The last bytes that a worker has written to standard error, and when."""

    worker: Worker
    kept: bytes = b""
    fed_at: float = 0.0

    def feed(self, data: bytes) -> None:
        self.kept = (self.kept + data)[-TAIL_BYTES:]
        self.fed_at = time.monotonic()


class LastWords:
    """Keeps the last lines of workers, and explains the end of a job with them."""

    def __init__(self) -> None:
        self._tails: dict[int, _Tail] = {}

    def watch(self, worker: Worker) -> Callable[[bytes], None]:
        """A function that takes what ``worker`` writes to standard error."""
        tail = self._tails[worker.number] = _Tail(worker)
        if len(self._tails) > _MOST_TAILS:
            del self._tails[next(iter(self._tails))]
        return tail.feed

    def explained(self, plan: JobPlan, outcome: JobOutcome, *, is_killed: bool) -> JobOutcome:
        """``outcome`` with the failures of workers, and the first of them in its text.

        The launcher may have seen the end of a rank first that failed because of another one. In a
        job of fixed size the outcome is then that of the other one. ``is_killed``: the launcher
        has killed workers.
        """
        if outcome.worker is None:
            return outcome
        failures = {tail.worker.number: _failure(tail) for tail in self._tails.values()}
        failures = {number: failure for number, failure in failures.items() if failure.exit_code}
        first = outcome.worker
        if plan.elastic is None and first in failures and failures[first].lost_its_peer:
            first = min(
                (number for number in failures if _is_cause(failures[number], is_killed=is_killed)),
                key=lambda number: (not failures[number].kind, self._tails[number].fed_at),
                default=first,
            )
        if first not in failures:
            return outcome
        cause = failures.pop(first)
        if plan.call is None:
            outcome = _named(outcome, self._tails[first].worker, cause, plan)
        return replace(outcome, failures=(cause, *failures.values())[:_MOST_FAILURES])


def _failure(tail: _Tail) -> RankFailure:
    exit_code = tail.worker.exit_code or 0
    failure = failure_of(tail.worker.rank_info.rank, exit_code, tail.kept)
    if exit_code > 0:
        return failure
    # A signal leaves no traceback, but that of the launcher may come after one.
    is_last = bool(failure.kind) and failure.lines[-1].startswith(failure.kind)
    if exit_code == -signal.SIGTERM and is_last:
        return failure
    return replace(failure, kind="", message="", path="", line=0)


def _is_cause(failure: RankFailure, *, is_killed: bool) -> bool:
    """Whether a rank has failed by itself: not after another one, nor by the launcher's signal."""
    if failure.kind:
        return not failure.lost_its_peer
    by_launcher = {-signal.SIGTERM, 128 + signal.SIGTERM, *([-signal.SIGKILL] * is_killed)}
    return failure.exit_code not in by_launcher


def _named(outcome: JobOutcome, worker: Worker, cause: RankFailure, plan: JobPlan) -> JobOutcome:
    if plan.elastic is None:
        return worker_failure(worker, f"{cause.text[:1].upper()}{cause.text[1:]}")
    raised = f"horovodrun: {cause.text}\n" if cause.text else ""
    return replace(outcome, text=raised + outcome.text)


def worker_failure(first: Worker, raised: str = "") -> JobOutcome:
    """The outcome of a job of fixed size when a worker failed; ``raised`` is its exception."""
    exit_code = first.exit_code or 0
    cause = f"{first.name}, which {describe_exit(exit_code)}:"
    text = failure_text(f"{cause}\n{raised}" if raised else cause, first.rank_info.rank, exit_code)
    return JobOutcome(1, text, first.rank_info, first.pid, exit_code, worker=first.number)
