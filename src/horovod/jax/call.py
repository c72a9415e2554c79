"""A collective inside of JAX's programs: what is known of it when they are traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from horovod.core.calls import Call
from horovod.core.operations import Result
from horovod.core.process_sets import ProcessSet


@dataclass(frozen=True)
class ProgramCall(Call):
    """A ``Call`` with its names, on one or more arrays; equal on all ranks of the set.

    Only ``set_rank``, ``is_zeroed`` and ``serial`` may differ between ranks.
    """

    names: tuple[str | None, ...] = ()  # one for a group, else one for each array
    set_size: int = 1
    set_rank: int = 0
    is_zeroed: bool = False  # take part, but have zeros as the result
    rows: tuple[int, ...] = ()  # of an allgather's results, where ranks give unequal parts
    serial: int = 0  # tells two calls in one program apart that are equal in all else

    def full_names(self) -> list[str | None]:
        """The names under which ranks match operations; None for those that the engine numbers."""
        return [None if name is None else f"{self.prefix}.{name}" for name in self.names]

    def following(self, **changes: Any) -> ProgramCall:
        """The call that a gradient needs, under a name that tells it from this one."""
        names = tuple(None if name is None else f"{name}.grad" for name in self.names)
        return replace(self, names=names, **changes)


def call_on(
    process_set: ProcessSet, call: Call, names: Sequence[str | None], is_group: bool = False
) -> ProgramCall:
    """A checked call, with its names, on a process set.

    Raises:
        ValueError: this process is not in the set, or there is no world.
    """
    set_rank, set_size = process_set.rank(), process_set.size()
    if set_rank is None or set_rank < 0 or set_size is None:
        raise ValueError(
            f"{call.title}: this process is not in {process_set}, or the set is not registered; "
            "give it to init or add_process_set on all ranks"
        )
    return ProgramCall(
        call.kind,
        call.process_set,
        call.op,
        call.prescale,
        call.postscale,
        call.root_rank,
        is_group,
        names=tuple(names),
        set_size=set_size,
        set_rank=set_rank,
    )


def result_rows(call: ProgramCall, position: int, rows: int) -> int:
    """How many rows the result of a call has on this rank, for an array of ``rows`` rows."""
    if call.row.result is Result.ALL_ROWS:
        return call.rows[position] if call.rows else rows * call.set_size
    if call.row.result is Result.OWN_ROWS:
        least, more = divmod(rows, call.set_size)
        return least + (call.set_rank < more)
    return rows
