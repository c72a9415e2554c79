"""Which collectives a collective's derivatives are; on the same process set, on all its ranks.

As in ``horovod.torch``, the backward pass of an allreduce is the same allreduce, of an allgather
and a broadcast the average of all ranks' gradients, on the rank that gave the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from horovod.core.calls import check_gradient
from horovod.core.operations import Average, Kind, Sum
from horovod.core.world import rank
from horovod.jax.call import ProgramCall


def derivative_of(call: ProgramCall, positions: Sequence[int]) -> ProgramCall:
    """The collective that tangents of the arrays at these positions go through.

    Raises:
        NotImplementedError: the op is not linear.
    """
    check_gradient(call.kind, call.op, "use jax.lax.stop_gradient on the array")
    chosen = call.following()
    if not call.is_group:
        chosen = replace(chosen, names=tuple(chosen.names[position] for position in positions))
    if call.rows:
        chosen = replace(chosen, rows=tuple(call.rows[position] for position in positions))
    return chosen


def transpose_of(call: ProgramCall, rows: tuple[int, ...]) -> tuple[ProgramCall, float]:
    """The collective that cotangents go through, and a factor for its results.

    ``rows``: of the arrays that the call was given.
    """
    if call.kind == Kind.ALLGATHER:
        return replace(call, kind=Kind.REDUCESCATTER, op=Average, rows=()), 1.0
    if call.kind == Kind.BROADCAST:
        is_root = rank() == call.root_rank
        return replace(call, kind=Kind.ALLREDUCE, op=Average, is_zeroed=not is_root), 1.0
    if call.kind == Kind.REDUCESCATTER:
        factor = call.prescale * call.postscale * (call.set_size if call.op == Sum else 1)
        plain = replace(call, kind=Kind.ALLGATHER, op=Average, prescale=1.0, postscale=1.0)
        return replace(plain, rows=rows), factor
    return call, 1.0
