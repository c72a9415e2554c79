"""A ``Call``: a collective with checked arguments, for all frameworks.

``reduction`` and ``exchange`` turn the arguments of a user into a ``Call``; they are the only check
of these arguments. What a kind of collective takes and returns stands in the table of
``operations``.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar

from horovod.core.compression import LinkFormat
from horovod.core.operations import (
    COLLECTIVES,
    OP_NAMES,
    Adasum,
    Average,
    Collective,
    Kind,
    Result,
    Sum,
    resolve_op,
)
from horovod.core.process_sets import ProcessSet, check_process_set, number_of
from horovod.errors import HorovodInternalError

if TYPE_CHECKING:
    from horovod import _native

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """A collective as a user asked for it, without tensors and names; the same on all ranks.

    ``process_set``: the number of the set. ``root_rank``: a rank of the world. ``is_group``:
    several tensors are one operation. ``link_format``: how it travels between hosts.
    ``operation``: the call as the engine takes it.

    Raises:
        TypeError: a field is of a type that the engine does not take.
    """

    kind: Kind
    process_set: int = 0
    op: int = Average
    prescale: float = 1.0
    postscale: float = 1.0
    root_rank: int = 0
    is_group: bool = False
    link_format: int = LinkFormat.AS_SET
    operation: _native.Operation = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        from horovod import _native

        factors = (self.prescale, self.postscale)
        arguments = (self.kind, self.op, self.root_rank, *factors, self.process_set)
        operation = _native.Operation(*arguments, link_format=self.link_format)
        object.__setattr__(self, "operation", operation)

    @property
    def row(self) -> Collective:
        """The row of its kind in the table."""
        return COLLECTIVES[self.kind]

    @property
    def keeps_shape(self) -> bool:
        """Whether results have the shapes of the inputs."""
        return self.row.result is Result.SAME_SHAPE

    @property
    def title(self) -> str:
        """The collective's name, as users write it."""
        return self.kind.name.lower()

    def grouped(self) -> Call:
        """The same for several tensors as one operation."""
        return replace(self, is_group=True)

    @property
    def prefix(self) -> str:
        """How the operation's full name begins."""
        return f"grouped_{self.title}" if self.is_group else self.title


def reduction(
    kind: Kind,
    average: bool | None,
    op: int | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    link_format: int = LinkFormat.AS_SET,
) -> Call:
    """A call of a collective that reduces; ``op`` None means Average.

    Raises:
        ValueError: an argument cannot be right, or the process set is not registered.
        HorovodInternalError: the collective does not take this op.
    """
    if average is not None:
        op = resolve_op(average, op, 4)
    try:
        number = process_set.process_set_id
        if number is None:
            number = number_of(process_set)
        return _reduction(kind, op, prescale_factor, postscale_factor, number, link_format)
    except (AttributeError, TypeError):
        check_process_set(process_set)
        found = f"op={reprlib.repr(op)}, factors {reprlib.repr(prescale_factor)}"
        raise ValueError(
            f"{kind.name.lower()}: op must be one of {', '.join(OP_NAMES.values())} and the "
            f"factors numbers; found {found}, {reprlib.repr(postscale_factor)}"
        ) from None


def exchange(kind: Kind, process_set: ProcessSet, root_rank: Any = 0) -> Call:
    """A call of a collective that does not reduce.

    Raises:
        ValueError: ``root_rank`` is no rank, or the process set is not registered.
    """
    try:
        number = process_set.process_set_id
        if number is None:
            number = number_of(process_set)
        return _exchange(kind, root_rank, number)
    except (AttributeError, TypeError):
        check_process_set(process_set)
        raise ValueError(
            f"{kind.name.lower()}: root_rank must be a rank, found {reprlib.repr(root_rank)}"
        ) from None


@lru_cache(maxsize=256)
def _reduction(
    kind: Kind,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: int,
    link_format: int,
) -> Call:
    ops = COLLECTIVES[kind].ops
    if op is not None and op not in ops and len(ops) < len(OP_NAMES):
        names = " or ".join(OP_NAMES[known] for known in ops)
        found = OP_NAMES.get(op, reprlib.repr(op))
        raise HorovodInternalError(f"{kind.name.lower()}: op must be {names}, found {found}")
    op = resolve_op(None, op)
    return Call(kind, process_set, op, prescale, postscale, link_format=link_format)


@lru_cache(maxsize=256)
def _exchange(kind: Kind, root_rank: Any, process_set: int) -> Call:
    return Call(kind, process_set, root_rank=index(root_rank))


def full_name(prefix: str, name: str | None) -> str | None:
    """The name under which ranks match an operation; None lets the engine number it."""
    return None if name is None else f"{prefix}.{name}"


def as_group(tensors: Sequence[T]) -> list[T]:
    """The tensors of a grouped operation; ``IndexError`` if there are none."""
    group = list(tensors)
    if not group:
        raise IndexError("a grouped operation needs at least one tensor")
    return group


def check_splits(rows: list[int]) -> list[int]:
    """The splits of an alltoall; ``ValueError`` for an empty list, which to the engine is None."""
    if not rows:
        raise ValueError("alltoall: splits is empty; it needs one entry for each rank")
    return rows


def check_gradient(kind: Kind, op: int, remedy: str) -> None:
    """Refuse the gradient of a reduction that has none.

    Args:
        kind: the collective.
        op: its reduce op.
        remedy: what the user can do instead, in the framework's words.

    Raises:
        NotImplementedError: the op is not linear.
    """
    gradient_ops = COLLECTIVES[kind].gradient_ops
    if not isinstance(gradient_ops, bool) and op not in gradient_ops:
        names = " and ".join(OP_NAMES[known] for known in gradient_ops)
        raise NotImplementedError(
            f"{kind.name.lower()}: only {names} have a gradient; {remedy} before reducing it with "
            "another op"
        )


def check_complex(call: Call, title: str) -> None:
    """``ValueError`` for a reduction that complex numbers do not have."""
    if call.row.ops and call.op not in (Average, Sum, Adasum):
        raise ValueError(
            f"{title}: complex numbers have no {OP_NAMES[call.op]}; they have Sum, Average and "
            "Adasum"
        )
