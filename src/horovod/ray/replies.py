"""What all workers reply to one question, and which failure is the cause of the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError

from horovod.errors import HorovodInternalError

__all__ = ["WorkersFailedError", "collect", "first_cause"]

# From a failure to those of the others: a rank that has lost another often fails before Ray knows
# why that one has ended.
_CAUSE_S = 15.0
_REST_S = 1.0
_POLL_S = 0.2


class WorkersFailedError(Exception):
    """Ranks have failed: ``errors``, by rank."""

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        super().__init__(f"ranks {sorted(errors)} have failed")
        self.errors = dict(errors)


def collect(
    references: Sequence[Any],
    *,
    deadline: float = float("inf"),
    meanwhile: Callable[[], None] | None = None,
) -> list[Any]:
    """The values of ``references`` by rank; ``meanwhile`` is called now and then.

    Raises:
        WorkersFailedError: some have failed; others that have not may still be under way.
        TimeoutError: there are some left at ``deadline``, of the monotonic clock.
    """
    ranks = {reference: rank for rank, reference in enumerate(references)}
    waiting = list(references)
    values: dict[int, Any] = {}
    errors: dict[int, Exception] = {}
    until = deadline
    while waiting and (left := until - time.monotonic()) > 0:
        wait_s = min(left, _POLL_S) if meanwhile else left
        ready, waiting = ray.wait(waiting, timeout=None if wait_s == float("inf") else wait_s)
        for reference in ready:
            try:
                values[ranks[reference]] = ray.get(reference)
            except Exception as error:
                errors[ranks[reference]] = error
                until = min(until, time.monotonic() + _patience_s(error))
        if meanwhile is not None:
            meanwhile()
    if errors:
        raise WorkersFailedError(errors)
    if waiting:
        raise TimeoutError(f"ranks {', '.join(str(ranks[late]) for late in waiting)}")
    return [values[rank] for rank in range(len(references))]


def _patience_s(error: Exception) -> float:
    return _CAUSE_S if isinstance(error, HorovodInternalError) else _REST_S


def first_cause(errors: Mapping[int, Exception]) -> tuple[int, Exception]:
    """The failure that explains the others, and its rank.

    A worker that is gone explains all; a function's own error explains collectives that fail.
    """

    def order(rank: int) -> tuple[int, int]:
        error = errors[rank]
        if isinstance(error, RayActorError):
            return 0, rank
        return (2 if isinstance(error, HorovodInternalError) else 1), rank

    rank = min(errors, key=order)
    return rank, errors[rank]
