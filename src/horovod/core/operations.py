"""What an operation is, apart from its tensors: kinds, reduce ops, dtypes, for all frameworks.

The numbers are shared with the engine. ``collectives`` turns these and a framework's tensors into
submissions.
"""

from __future__ import annotations

import reprlib
import warnings
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from horovod.core.process_sets import ProcessSet, check_process_set, number_of
from horovod.core.world import rocm_built
from horovod.errors import HorovodInternalError

if TYPE_CHECKING:
    from horovod import _native

__all__ = [
    "Adasum",
    "Average",
    "Dtype",
    "Intent",
    "Kind",
    "Max",
    "Min",
    "Product",
    "Sum",
    "check_predivide",
    "full_name",
    "make_allreduce",
    "make_broadcast",
    "make_operation",
    "make_reducescatter",
    "resolve_op",
]

# Reduce operations; the numbers are part of the public interface.
Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

_OP_NAMES = {
    Average: "Average",
    Sum: "Sum",
    Adasum: "Adasum",
    Min: "Min",
    Max: "Max",
    Product: "Product",
}


class Kind(IntEnum):
    """Collectives, numbered as in ``engine/control/request.h``."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    BARRIER = 3
    ALLTOALL = 4
    REDUCESCATTER = 5
    JOIN = 6


class Intent(IntEnum):
    """What the caller does next, numbered as in ``engine/runtime/submission.h``."""

    COMPUTE = 0
    WAIT = 1
    MORE = 2


class Dtype(IntEnum):
    """Element types, numbered as in ``engine/core/dtype.h``."""

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT16 = 5
    FLOAT32 = 6
    FLOAT64 = 7
    BOOL = 8
    BFLOAT16 = 9
    UINT16 = 10


def resolve_op(average: bool | None, op: int | None) -> int:
    """The reduce operation meant by ``op`` and the deprecated ``average`` argument.

    Raises:
        ValueError: both are given, or ``op`` is none of Average, Sum, Adasum, Min, Max, Product.
    """
    if average is None:
        op = Average if op is None else op
        try:
            if op in _OP_NAMES:
                return op
        except TypeError:
            pass  # unhashable
        names = ", ".join(_OP_NAMES.values())
        raise ValueError(f"op={reprlib.repr(op)}: expected one of {names}")
    if op is not None:
        raise ValueError("give op or average, not both; op replaces average")
    warnings.warn("average is deprecated; use op=Average or op=Sum", DeprecationWarning, 3)
    return Average if average else Sum


def check_predivide(op: int, gradient_predivide_factor: float) -> None:
    """Refuse a factor that would not cancel out: what splits an averaging into two divisions.

    Raises:
        ValueError: it is not 1, and ``op`` is not Average, or this is ROCm; or it is not positive.
    """
    if gradient_predivide_factor == 1.0:
        return
    if gradient_predivide_factor <= 0:
        raise ValueError(
            f"gradient_predivide_factor must be positive, found {gradient_predivide_factor}"
        )
    if op != Average:
        raise ValueError("gradient_predivide_factor other than 1 needs op=Average")
    if rocm_built():
        raise ValueError("gradient_predivide_factor other than 1 is not supported on ROCm")


_ALLREDUCE = Kind.ALLREDUCE  # looking up an enum's member takes half as long as making a call


def full_name(prefix: str, name: str | None) -> str | None:
    """The name under which ranks meet; None lets the engine number it."""
    return None if name is None else f"{prefix}.{name}"


def make_allreduce(
    op: int | None, prescale_factor: float, postscale_factor: float, process_set: ProcessSet
) -> _native.Operation:
    """An allreduce on a process set; ``op`` None means Average."""
    try:
        number = process_set.process_set_id
        if number is None:
            number = _registered(process_set)
        return _reduction(_ALLREDUCE, op, prescale_factor, postscale_factor, number)
    except (AttributeError, TypeError):
        check_process_set(process_set)
        raise _refusal("allreduce", op, prescale_factor, postscale_factor) from None


def make_reducescatter(
    op: int | None, prescale_factor: float, postscale_factor: float, process_set: ProcessSet
) -> _native.Operation:
    """A reducescatter on a process set.

    Raises:
        HorovodInternalError: ``op`` is neither Average nor Sum.
    """
    number = _registered(process_set)
    if op not in (None, Average, Sum):
        found = _OP_NAMES[op] if op in (Adasum, Min, Max, Product) else reprlib.repr(op)
        raise HorovodInternalError(f"reducescatter: op must be Average or Sum, found {found}")
    try:
        return _reduction(Kind.REDUCESCATTER, op, prescale_factor, postscale_factor, number)
    except TypeError:
        raise _refusal("reducescatter", op, prescale_factor, postscale_factor) from None


def make_broadcast(root_rank: int, process_set: ProcessSet) -> _native.Operation:
    """A broadcast from a rank of the world."""
    number = _registered(process_set)
    try:
        return _broadcast(root_rank, number)
    except TypeError:
        raise ValueError(
            f"broadcast: root_rank must be a rank, found {reprlib.repr(root_rank)}"
        ) from None


def make_operation(kind: Kind, process_set: ProcessSet) -> _native.Operation:
    """An operation that has nothing to say but its kind."""
    return _plain(kind, _registered(process_set))


def _refusal(kind: str, op: Any, *factors: Any) -> ValueError:
    """What to say of arguments that the engine cannot take."""
    found = ", ".join(map(reprlib.repr, factors))
    return ValueError(
        f"{kind}: op must be one of {', '.join(_OP_NAMES.values())} and the factors numbers; found "
        f"op={reprlib.repr(op)}, factors {found}"
    )


def _registered(process_set: ProcessSet) -> int:
    try:
        number = process_set.process_set_id
    except AttributeError:
        check_process_set(process_set)
        raise
    return number_of(process_set) if number is None else number


@lru_cache(maxsize=256)
def _reduction(
    kind: Kind, op: int | None, prescale_factor: float, postscale_factor: float, process_set: int
) -> _native.Operation:
    from horovod import _native

    op = resolve_op(None, op)
    return _native.Operation(kind, op, 0, prescale_factor, postscale_factor, process_set)


@lru_cache(maxsize=256)
def _broadcast(root_rank: int, process_set: int) -> _native.Operation:
    from horovod import _native

    return _native.Operation(Kind.BROADCAST, root=root_rank, process_set=process_set)


@lru_cache(maxsize=256)
def _plain(kind: Kind, process_set: int) -> _native.Operation:
    from horovod import _native

    return _native.Operation(kind, process_set=process_set)
