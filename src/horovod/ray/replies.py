"""The workers' replies to one call, the cause of a failure, and the logs for callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.queue import Empty, Queue

from horovod.errors import HorovodInternalError
from horovod.ray.placement import beside_caller

Callback = Callable[[dict[str, Any]], Any]

# Time for the failures of other ranks: a rank that lost a peer often fails before Ray knows why the
# peer has ended.
_CAUSE_S = 15.0
_OTHERS_S = 1.0
_POLL_S = 0.2


class WorkersFailedError(Exception):
    """Ranks have failed; ``errors`` has their errors by rank."""

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
        WorkersFailedError: ranks have failed; other calls may still run.
        TimeoutError: calls still run at ``deadline``, a time of the monotonic clock.
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
                grace_s = _CAUSE_S if isinstance(error, HorovodInternalError) else _OTHERS_S
                until = min(until, time.monotonic() + grace_s)
        if meanwhile is not None:
            meanwhile()
    if errors:
        raise WorkersFailedError(errors)
    if waiting:
        raise TimeoutError(f"ranks {', '.join(str(ranks[late]) for late in waiting)}")
    return [values[rank] for rank in range(len(references))]


def first_cause(errors: Mapping[int, Exception]) -> tuple[int, Exception]:
    """The failure that explains the others, and its rank.

    The end of a worker explains all other failures; a function's own error explains failed
    collectives.
    """

    def order(rank: int) -> tuple[int, int]:
        error = errors[rank]
        if isinstance(error, RayActorError):
            return 0, rank
        return (2 if isinstance(error, HorovodInternalError) else 1), rank

    rank = min(errors, key=order)
    return rank, errors[rank]


@contextmanager
def log_queue(
    callbacks: Sequence[Callback],
) -> Iterator[tuple[Queue | None, Callable[[], None] | None]]:
    """A queue for logs and a function that empties it; without callbacks there are none."""
    if not callbacks:
        yield None, None
        return
    queue = Queue(actor_options=beside_caller())

    def empty() -> None:
        """Hand over the items; does not wait for more."""
        with suppress(Empty):
            while count := queue.qsize():
                for item in queue.get_nowait_batch(count):
                    for callback in callbacks:
                        callback(item)

    try:
        yield queue, empty
        empty()
    finally:
        queue.shutdown(force=True)


@contextmanager
def listening(
    workers: Sequence[Any], callbacks: Sequence[Callback]
) -> Iterator[Callable[[], None] | None]:
    """Within ``with`` workers log into a queue; yields a function that empties it, or None."""
    with log_queue(callbacks) as (queue, empty):
        if queue is not None:
            ray.get([worker.set_queue.remote(queue) for worker in workers])
        yield empty
        if queue is not None:
            ray.get([worker.set_queue.remote(None) for worker in workers])
