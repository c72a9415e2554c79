"""The hooks that autograd calls when a gradient is final: they count, and say when to send.

They run once per parameter and step on the threads of backward, so they use local names only. They
never hold a strong reference to the reducer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from horovod.torch.gradient_groups import GradientGroup

Hook = Callable[[Tensor], None]


class Progress:
    """Bytes of gradients that do not belong to a group, in this step.

    Invariant: ``target - room`` bytes are ready and not sent; ``unsent`` counts them too.
    """

    __slots__ = ("room", "target", "unsent")

    def __init__(self) -> None:
        self.unsent = 0  # not yet with the engine
        self.target = 0  # size of the batch that is filling
        self.room = 0  # what it still takes; at 0 it is sent

    def open_batch(self, batch_bytes: int) -> None:
        self.target = self.room = min(batch_bytes, self.unsent)


class Reducer(Protocol):
    """What hooks call."""

    def send_ready(self) -> None:
        """The batch is full."""

    def send_group(self, group: GradientGroup) -> None:
        """The group's last gradient is ready."""

    def name_of(self, index: int) -> str:
        """The parameter's name, for errors."""


def batch_hook_maker(
    reducer: Reducer, passes_left: list[int], ready: list[int], progress: Progress
) -> Callable[[int, int], Hook]:
    """A function that makes the hook of a parameter that leaves in any batch."""
    append_ready = ready.append
    reducer_ref = weakref.ref(reducer)
    count_pass = _pass_counter(reducer_ref, passes_left)

    def send_ready() -> None:
        alive = reducer_ref()
        if alive is not None:
            alive.send_ready()

    def make(index: int, size_bytes: int) -> Hook:
        def hook(_: Tensor) -> None:
            left = passes_left[index] - 1
            if left:
                return count_pass(index, left)
            passes_left[index] = 0
            append_ready(index)
            progress.room -= size_bytes
            if progress.room <= 0:
                send_ready()
            return None

        return hook

    return make


def group_hook_maker(
    reducer: Reducer, passes_left: list[int]
) -> Callable[[int, GradientGroup], Hook]:
    """A function that makes the hook of a parameter that leaves with its group."""
    reducer_ref = weakref.ref(reducer)
    count_pass = _pass_counter(reducer_ref, passes_left)

    def send_group(group: GradientGroup) -> None:
        alive = reducer_ref()
        if alive is not None:
            alive.send_group(group)

    def make(index: int, group: GradientGroup) -> Hook:
        def hook(_: Tensor) -> None:
            left = passes_left[index] - 1
            if left:
                return count_pass(index, left)
            passes_left[index] = 0
            group.waiting -= 1
            if not group.waiting:
                send_group(group)
            return None

        return hook

    return make


def _pass_counter(
    reducer_ref: weakref.ref[Reducer], passes_left: list[int]
) -> Callable[[int, int], None]:
    def count_pass(index: int, left: int) -> None:
        if left < 0:
            raise AssertionError(_too_many_passes(reducer_ref(), index))
        passes_left[index] = left

    return count_pass


def _too_many_passes(reducer: Reducer | None, index: int) -> str:
    name = reducer.name_of(index) if reducer else f"parameter {index}"
    return (
        f"the gradient of {name!r} was computed more often than backward_passes_per_step before "
        "step() or synchronize(); to accumulate gradients over several backward passes, increase "
        "backward_passes_per_step"
    )
