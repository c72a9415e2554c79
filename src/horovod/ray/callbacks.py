"""What workers log on its way to the callbacks of ``run`` and ``execute``, in the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.util.queue import Empty, Queue

from horovod.ray.placement import beside_caller

__all__ = ["Callback", "call_back", "items_of", "listening"]

Callback = Callable[[dict[str, Any]], Any]


def call_back(callbacks: Sequence[Callback], item: dict[str, Any]) -> None:
    """Hand a dictionary to all of them, in their order."""
    for callback in callbacks:
        callback(item)


@contextmanager
def listening(
    workers: Sequence[Any], callbacks: Sequence[Callback]
) -> Iterator[Callable[[], None] | None]:
    """While this lasts the workers' logs go into a queue, and what is yielded empties it."""
    if not callbacks:
        yield None
        return
    queue = Queue(actor_options=beside_caller())
    try:
        ray.get([worker.set_queue.remote(queue) for worker in workers])

        def empty() -> None:
            for item in items_of(queue):
                call_back(callbacks, item)

        yield empty
        empty()
        ray.get([worker.set_queue.remote(None) for worker in workers])
    finally:
        queue.shutdown(force=True)


def items_of(queue: Queue) -> Iterator[Any]:
    """What is in it until there is nothing left; never waits for more."""
    with suppress(Empty):
        while count := queue.qsize():
            yield from queue.get_nowait_batch(count)
