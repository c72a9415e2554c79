"""``hvd.metrics()``: what this rank has counted."""

from __future__ import annotations

from horovod.core import world


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
