"""``hvd.metrics()``, what this rank has counted, and ``hvd.log_metrics()``, numbers to show."""

from __future__ import annotations

from collections.abc import Mapping

from horovod.core import world
from horovod.metrics import sampling

_MOST_NAME = 64


def metrics() -> dict[str, float]:
    """What Horovod has counted in this process since it started; nothing is communicated.

    Counts go on over worlds, so they never go back. Before ``init`` they are 0. Horovod's own
    operations, such as those that agree on process sets, count like others. By name:

    - ``<kind>_operations``: submitted by this rank, for allreduce, allgather, broadcast, alltoall,
      reducescatter, barrier and join; ``<kind>_tensors`` and ``<kind>_bytes`` for the first five.
      A grouped operation is one operation with several tensors.
    - ``in_flight_operations``: under way now.
    - ``buckets``: collectives that were run, each for one operation or several;
      ``fused_tensors``: tensors that ran together with others in one.
    - ``queued_seconds``: from submission to start, summed over operations: waiting until all ranks
      had submitted, and for earlier collectives.
    - ``waited_seconds``: in the middle of collectives, for other ranks.
    - ``blocked_seconds``: threads of this program, for results.
    - ``errors``: operations that failed. ``stalls``: operations, and collectives under way, that
      waited for other ranks until the stall check's warning time. ``resets``: worlds after the
      first one.
    - ``steps``, ``step_seconds``, ``last_step_seconds``: training steps and their time. A step is
      from one submission of a named tensor to the next; it is the first name that came twice, until
      it stays away for ten steps. 0 where no name comes again.
    """
    return world.metrics()


def log_metrics(
    metrics: Mapping[str, float] | None = None, step: int | None = None, *, samples: float = 0
) -> None:
    """Show numbers of this rank, such as its loss, in the page of ``horovodrun --report``.

    Nothing is communicated, and the call never waits. Without a report, or before ``init``, it does
    nothing. The page has a chart of each name, with the mean of about a second, for the first 8
    names. A first value that is not finite is an event there.

    Args:
        metrics: numbers by name, such as ``{"loss": 0.3}``; anything that ``float`` takes. The
            value of a tensor on a GPU waits for that GPU.
        step: the step that they are of.
        samples: how many samples this rank has processed since its last call; the page shows them
            per second.

    Raises:
        TypeError, ValueError: a name is no text of 1 to 64 characters, a value is no number, or
            ``samples`` is negative or not finite.
    """
    numbers = {}
    for name, value in (metrics or {}).items():
        if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME:
            raise ValueError(
                f"log_metrics: name {name!r:.99}; expected a text of 1 to {_MOST_NAME} characters"
            )
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"log_metrics: {name}: expected a number: {error}") from None
    count = float(samples)
    if not 0 <= count < float("inf"):
        raise ValueError(f"log_metrics: samples is {samples}; expected a number from 0 on")
    sampling.log(numbers, None if step is None else int(step), count)
