"""The table of collectives, reduce ops and dtypes, for all frameworks; the engine's numbers.

Every binding derives from ``COLLECTIVES`` what a collective takes, what its result looks like, and
what has a gradient. docs/new-collective.md lists the files that a new row needs.
"""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Sequence
from enum import Enum, IntEnum
from numbers import Real
from typing import Any, Literal, NamedTuple

from horovod.core.built import rocm_built

# Reduce operations; the numbers are part of the public interface.
Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

OP_NAMES = dict(enumerate(("Average", "Sum", "Adasum", "Min", "Max", "Product")))


class Kind(IntEnum):
    """Collectives, numbered as in ``engine/core/collectives.h``."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    BARRIER = 3
    ALLTOALL = 4
    REDUCESCATTER = 5
    JOIN = 6


class Result(Enum):
    """The result of a collective on a rank, for an input of shape ``[n, ...]``."""

    SAME_SHAPE = "the input's shape"
    ALL_ROWS = "the rows of all ranks"
    OWN_ROWS = "n // size rows, one more on the first n % size ranks"
    EXCHANGED_ROWS = "the rows that ranks sent to this one, and their numbers as int32"
    LAST_RANK = "an int32 scalar"
    NOTHING = "no tensor"


def own_part(count: int, rank: int, size: int) -> slice:
    """Which of ``count`` rows are a rank's ``OWN_ROWS``."""
    least, longer = divmod(count, size)
    begin = rank * least + min(rank, longer)
    return slice(begin, begin + least + (rank < longer))


class Collective(NamedTuple):
    """A row of the table.

    Attributes:
        arguments: fields of ``Call`` that the user gives, besides tensor, name and process set;
            ``splits`` goes with the tensor.
        result: the shape of the result.
        is_grouped: whether several tensors can be one operation.
        ops: the reduce ops that it takes.
        gradient_ops: with which of them it has a gradient; without ``ops``: whether it has one.
    """

    arguments: tuple[str, ...] = ()
    result: Result = Result.SAME_SHAPE
    is_grouped: bool = False
    ops: Sequence[int] = ()
    gradient_ops: Sequence[int] | bool = False


_FACTORS = ("op", "prescale", "postscale", "link_format")
_LINEAR = (Average, Sum)

COLLECTIVES = {
    Kind.ALLREDUCE: Collective(_FACTORS, Result.SAME_SHAPE, True, tuple(OP_NAMES), _LINEAR),
    Kind.ALLGATHER: Collective((), Result.ALL_ROWS, True, (), True),
    Kind.BROADCAST: Collective(("root_rank",), Result.SAME_SHAPE, False, (), True),
    Kind.ALLTOALL: Collective(("splits",), Result.EXCHANGED_ROWS, False, (), True),
    Kind.REDUCESCATTER: Collective(_FACTORS, Result.OWN_ROWS, True, _LINEAR, _LINEAR),
    Kind.BARRIER: Collective((), Result.NOTHING),
    Kind.JOIN: Collective((), Result.LAST_RANK),
}


class Intent(IntEnum):
    """The next action of the caller, numbered as in ``engine/runtime/submission.h``."""

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


# Added to the number of a dtype: complex numbers, with real and imaginary parts of it. The engine
# sees a tensor of them as one of pairs.
COMPLEX = 0x100


def resolve_op(average: bool | None, op: int | None, stacklevel: int = 3) -> int:
    """The reduce operation meant by ``op`` and the deprecated ``average`` argument.

    ``stacklevel``: how far above this function the user's call is.

    Raises:
        ValueError: both are given, or ``op`` is none of Average, Sum, Adasum, Min, Max, Product.
    """
    if average is None:
        op = Average if op is None else op
        try:
            if op in OP_NAMES:
                return op
        except TypeError:
            pass  # unhashable
        names = ", ".join(OP_NAMES.values())
        raise ValueError(f"op={reprlib.repr(op)}: expected one of {names}")
    if op is not None:
        raise ValueError("give op or average, not both; op replaces average")
    warnings.warn("average is deprecated; use op=Average or op=Sum", DeprecationWarning, stacklevel)
    return Average if average else Sum


def check_passes(backward_passes_per_step: int) -> None:
    """Refuse a number of backward passes that no step can wait for.

    Raises:
        ValueError: it is no whole number, or less than 1.
    """
    found = backward_passes_per_step
    if isinstance(found, bool) or not isinstance(found, Real) or found < 1 or found % 1:
        raise ValueError(
            "backward_passes_per_step must be a whole number of at least 1, found "
            f"{reprlib.repr(found)}"
        )


Sharded = bool | Literal["elementwise"]


def check_sharded(sharded: Any, op: int) -> None:
    """Refuse what ``DistributedOptimizer(sharded=)`` and its reduce op cannot be.

    Raises:
        ValueError: ``sharded`` is none of its values, or the op is no average and no sum.
    """
    if sharded not in (False, True, "elementwise"):
        raise ValueError(
            f"DistributedOptimizer: sharded must be False, True or 'elementwise', found {sharded!r}"
        )
    if sharded and op not in (Average, Sum):
        raise ValueError(
            "DistributedOptimizer: sharded=True needs op=Average or op=Sum, found "
            f"{OP_NAMES.get(op, op)}"
        )


def check_elementwise(kind: type, is_known: bool, known: Sequence[str]) -> None:
    """``ValueError`` if optimizers of class ``kind`` are not known to treat all elements alike."""
    if not is_known:
        raise ValueError(
            "DistributedOptimizer: sharded=True needs an optimizer that treats every element "
            f"alike, which {kind.__name__} may not do. Known: {', '.join(known)}. If it does, use "
            "sharded='elementwise'"
        )


def check_summing(op: int, title: str) -> None:
    """Refuse an op with which errors of one step cannot be made good by the next.

    Raises:
        ValueError: ``op`` is neither Average nor Sum.
    """
    if op not in (Average, Sum):
        raise ValueError(
            f"Compression.{title} reduces with op=Average or op=Sum only, found "
            f"op={OP_NAMES.get(op, repr(op))}"
        )


def check_predivide(op: int, gradient_predivide_factor: float) -> None:
    """Refuse a factor that would not cancel out.

    The factor splits an averaging: gradients are divided by it before the sum, and multiplied by
    ``factor / size`` after it.

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
