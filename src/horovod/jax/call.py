"""What a collective is inside of JAX's programs: the part that is known when they are traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from horovod.core.operations import Average, Kind
from horovod.core.process_sets import ProcessSet

__all__ = ["Call", "call_on", "result_rows"]


@dataclass(frozen=True)
class Call:
    """A collective on one or more arrays, without the arrays; equal on all ranks of the set.

    But for ``set_rank`` and what follows from it: ``is_zeroed`` and ``serial``.
    """

    kind: Kind
    names: tuple[str | None, ...]  # one for a group, else one for each array
    process_set: int
    set_size: int
    set_rank: int
    op: int = Average
    prescale: float = 1.0
    postscale: float = 1.0
    root_rank: int = 0  # of the world
    is_group: bool = False
    is_zeroed: bool = False  # take part, but have zeros as the result
    rows: tuple[int, ...] = ()  # of an allgather's results, where ranks give unequal parts
    serial: int = 0  # tells two calls in one program apart that are equal in all else

    @property
    def prefix(self) -> str:
        """How the operation's full name begins."""
        return f"grouped_{self.kind.name.lower()}" if self.is_group else self.kind.name.lower()

    def full_names(self) -> list[str | None]:
        """The names under which ranks meet; None for those that the engine numbers."""
        return [None if name is None else f"{self.prefix}.{name}" for name in self.names]

    def following(self, **changes: Any) -> Call:
        """The call that a gradient needs, under a name that tells it from this one."""
        names = tuple(None if name is None else f"{name}.grad" for name in self.names)
        return replace(self, names=names, **changes)


def call_on(process_set: ProcessSet, kind: Kind, names: Sequence[str | None], **rest: Any) -> Call:
    """A call on a process set.

    Raises:
        ValueError: the set is not registered, this process is not in it, or there is no world.
    """
    number, set_rank, set_size = (
        process_set.process_set_id,
        process_set.rank(),
        process_set.size(),
    )
    if number is None or set_rank is None or set_rank < 0 or set_size is None:
        raise ValueError(
            f"{kind.name.lower()}: this process is not in {process_set}, or the set is not "
            "registered; give it to init or add_process_set on all ranks"
        )
    return Call(kind, tuple(names), number, set_size, set_rank, **rest)


def result_rows(call: Call, position: int, rows: int) -> int:
    """How many rows the result of a call has on this rank, for an array of ``rows`` rows."""
    if call.kind == Kind.ALLGATHER:
        return call.rows[position] if call.rows else rows * call.set_size
    if call.kind == Kind.REDUCESCATTER:
        least, more = divmod(rows, call.set_size)
        return least + (call.set_rank < more)
    return rows
