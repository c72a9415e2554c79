"""Local steps: when which part of the parameters is sent, and what becomes of it.

Ranks step alone. From time to time they agree on parameters again: what each one has changed since
the last agreement (the *outer gradient*) is averaged, and an outer step moves the agreed
parameters. This is the part without a framework, for ``LocalSGD`` and ``DiLoCo`` of all bindings.
"""

from __future__ import annotations

import math
import reprlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from horovod.core.base.checked import is_number
from horovod.core.compression import (
    FeedbackCompressor,
    check_compressor,
    compression_text,
    not_called,
)
from horovod.errors import MismatchError


@dataclass(frozen=True)
class LocalSteps:
    """The arguments of ``DiLoCo``; equal on all ranks. Steps are counted from 1.

    Attributes:
        title: what the user calls it, for errors.
        name: begins the names of the operations.
        merge_weight: how much of the agreed parameters a rank takes over, in (0, 1].
    """

    title: str
    name: str
    sync_every: int
    outer_lr: float
    outer_momentum: float
    nesterov: bool
    fragments: int
    overlap: int
    merge_weight: float

    def __post_init__(self) -> None:
        self._check_count("sync_every", 1, None)
        self._check_count("fragments", 1, self.sync_every)
        self._check_count("overlap", 0, self.sync_every - 1)
        lr, momentum, weight = self.outer_lr, self.outer_momentum, self.merge_weight
        self._check("outer_lr", is_number(lr) and lr > 0, "a number > 0")
        self._check("outer_momentum", is_number(momentum) and 0 <= momentum < 1, "in [0, 1)")
        self._check("merge_weight", is_number(weight) and 0 < weight <= 1, "in (0, 1]")
        self._check("nesterov", isinstance(self.nesterov, bool), "True or False")
        self._check("name", isinstance(self.name, str) and bool(self.name), "a text")

    def sent_after(self, step: int) -> list[int]:
        """The fragments that are sent after a step: each every ``sync_every`` steps, in turn."""
        return [k for k in range(self.fragments) if (step - self._first(k)) % self.sync_every == 0]

    def merged_after(self, step: int) -> list[int]:
        """The fragments whose result is merged after a step."""
        sent = step - self.overlap
        return self.sent_after(sent) if sent > 0 else []

    def name_of(self, fragment: int) -> str:
        """Of the operation that sends it."""
        return f"{self.name}.fragment.{fragment}"

    @staticmethod
    def label_of(number: int, index: int, shape: Sequence[int]) -> str:
        """Of a parameter of a fragment, for what travels exactly by its name.

        It is not known what the layer is called. A vector is taken for a bias: with top-k of
        biases, too, a transformer learns measurably less.
        """
        return f"{number}.{index}" + (".bias" if len(shape) < 2 else "")

    def marker_shape(self, step: int, checksum: int | None = None) -> tuple[int, ...]:
        """Of an array that travels with a fragment: no bytes.

        So the engine refuses ranks that agree after different steps, or of which one finishes, or
        that have begun with different parameters.

        Args:
            step: after which the fragment is sent; 0 for ``finish``.
            checksum: of the agreed parameters, if this ``must_compare``.
        """
        return (0, step) if checksum is None else (0, step, checksum)

    def must_compare(self, steps: int, marked: int) -> bool:
        """Whether a fragment may be one of which ranks have other agreed parameters.

        Only what ranks change is averaged, so parameters that differ would do so for ever. They may
        at first. Where ranks ``finish``, their steps are not compared: one may have joined.

        Args:
            steps: how many this rank has made.
            marked: the step that is sent; 0 for ``finish``.
        """
        return marked == 0 or steps <= self.sync_every

    def out_of_step(
        self,
        error: MismatchError,
        duty: str = "call step() and finish() equally often, from the same state",
    ) -> MismatchError:
        """What a user is told where the engine has refused a fragment.

        ``duty``: what all ranks must do alike.
        """
        return MismatchError(
            f"{self.title}: all ranks must {duty}, and begin with equal parameters "
            "(hvd.broadcast_parameters); shapes [0, step, n] are those of steps, where n stands "
            f"for the agreed parameters, at first those of the beginning: {error}",
            operation=error.operation,
        )

    def step_outer(self, agreed: Any, momentum: Any, gradient: Any) -> tuple[Any, Any]:
        """Agreed parameters and momentum after a step of SGD; arrays of any framework.

        ``momentum``: None where ``outer_momentum`` is 0.
        """
        if momentum is None:
            return agreed - self.outer_lr * gradient, None
        momentum = self.outer_momentum * momentum + gradient
        ahead = gradient + self.outer_momentum * momentum if self.nesterov else momentum
        return agreed - self.outer_lr * ahead, momentum

    def settings(self, compression: Any, parameters: str) -> dict[str, Any]:
        """What all ranks must have alike, by the names that users know.

        Args:
            compression: what travels.
            parameters: what ``describe`` says of them.
        """
        text = compression_text(compression)
        return {**asdict(self), "compression": text, "parameters": parameters}

    def check_compression(self, compression: Any, is_refused: bool, tensors: str) -> None:
        """``ValueError`` for no compressor, or one that is refused or was not called."""
        check_compressor(compression)
        if isinstance(compression, type) and issubclass(compression, FeedbackCompressor):
            raise not_called(self.title, compression)
        if is_refused:
            raise ValueError(
                f"{self.title}: compression={compression_text(compression)} cannot reduce single "
                f"{tensors}, as hvd.allreduce does; use none, fp16, bf16, int8, fp8, mxfp8, int4 "
                "or topk()"
            )

    def check_fragments(self, parameter_count: int) -> None:
        """``ValueError`` if there are too few parameters for the fragments."""
        if self.fragments > parameter_count:
            raise ValueError(
                f"{self.title}: fragments must be at most the number of parameters, which is "
                f"{parameter_count}, found {self.fragments}"
            )

    def _first(self, fragment: int) -> int:
        """The step after which a fragment is sent first; the last one after ``sync_every``."""
        return self.sync_every * (fragment + 1) // self.fragments

    def _check_count(self, argument: str, lowest: int, highest: int | None) -> None:
        found = getattr(self, argument)
        is_int = isinstance(found, int) and not isinstance(found, bool)
        range_ = f"a number of at least {lowest}"
        if highest is not None:
            range_ = f"in {lowest} to {highest} with sync_every={self.sync_every}"
        is_in = is_int and found >= lowest and (highest is None or found <= highest)
        self._check(argument, is_in, range_)

    def _check(self, argument: str, is_right: bool, expected: str) -> None:
        if not is_right:
            found = reprlib.repr(getattr(self, argument))
            raise ValueError(f"{self.title}: {argument} must be {expected}, found {found}")


# Rate, momentum and nesterov with which DiLoCo's outer step is the average: LocalSGD.
AVERAGING = (1.0, 0.0, False)


def make_local_steps(
    title: str,
    name: str | None,
    sync_every: int,
    outer: tuple[float, float, bool],
    schedule: tuple[int, int, float | None],
) -> LocalSteps:
    """The arguments of a user, with the defaults that depend on others.

    Args:
        outer: rate, momentum and nesterov of the outer step.
        schedule: fragments, overlap and merge weight.

    Raises:
        ValueError: one cannot be right; the text names it.
    """
    fragments, overlap, weight = schedule
    name = title if name is None else name
    weight = (0.5 if overlap else 1.0) if weight is None else weight
    return LocalSteps(title, name, sync_every, *outer, fragments, overlap, weight)


def mixed(agreed: Any, own: Any, weight: float) -> Any:
    """What becomes of a rank's parameter: ``weight`` says how far it moves to the agreed one."""
    return agreed if weight == 1 else weight * agreed + (1 - weight) * own


def parts_of(sizes: Sequence[int], count: int) -> list[slice]:
    """Consecutive parts of about equal size, none of them empty.

    ``count``: at most as many as there are sizes.
    """
    total = sum(sizes)
    bounds, passed = [0], 0
    for index, size in enumerate(sizes):
        number = len(bounds)
        must_cut = len(sizes) - index <= count - number
        is_nearest = 2 * passed + size > 2 * total * number / count
        if number < count and index > bounds[-1] and (must_cut or is_nearest):
            bounds.append(index)
        passed += size
    return [slice(*pair) for pair in zip(bounds, [*bounds[1:], len(sizes)], strict=True)]


def describe(shapes: Sequence[Sequence[int]]) -> str:
    """Parameters in short, to compare those of the ranks."""
    return f"{len(shapes)} of {sum(map(math.prod, shapes))} elements"


def checksum_of(buffers: Iterable[bytes | memoryview]) -> int:
    """Equal for equal bytes, as a dimension of a shape."""
    found = 0
    for buffer in buffers:
        found = zlib.crc32(buffer, found)
    return found
