"""The hooks that autograd calls when a gradient is final: they count, and say when to send.

They run once per parameter and step on the threads of backward, so they use local names only. They
never hold a strong reference to the reducer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from horovod.core.gradient_groups import batches_of
from horovod.torch.gradient_exchange import Pending


class GradientGroup:
    """Counts down the gradients in a step that leave together: as one operation, or one batch.

    Args:
        name: name of the grouped operation; the same on every rank.
        indices: its parameters; the same in the same order on every rank.
        is_chosen: by the user, so that it is one operation where no exchange takes it apart.
    """

    __slots__ = ("indices", "is_chosen", "is_sent", "name", "pending", "waiting")

    def __init__(self, name: str, indices: list[int], is_chosen: bool) -> None:
        self.name = name
        self.indices = indices
        self.is_chosen = is_chosen
        self.restart()

    def restart(self) -> None:
        """Begin a new step."""
        self.waiting = len(self.indices)  # gradients that are not ready
        self.is_sent = False
        self.pending: Pending | None = None  # None too if all its gradients travel elsewhere

    @property
    def is_pending(self) -> bool:
        """Whether some gradient is ready or sent."""
        return self.is_sent or self.waiting < len(self.indices)


def split_by_bytes(params: Sequence[Tensor], limit: int) -> list[list[Tensor]]:
    """Consecutive parameters in groups of at least ``limit`` bytes, last parameters first.

    Backward reaches the last parameters first. Every rank with these parameters splits alike.
    """
    backward = list(reversed(params))
    sizes = [param.numel() * param.element_size() for param in backward]
    return [backward[batch] for batch in batches_of(sizes, limit)]


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
    """The part of ``GradientReducer`` that hooks call."""

    def send_ready(self) -> None:
        """Send the batch, which is full."""

    def send_group(self, group: GradientGroup) -> None:
        """Send the group, whose last gradient is ready."""

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
            reducer = reducer_ref()
            name = reducer.name_of(index) if reducer else f"parameter {index}"
            raise AssertionError(
                f"the gradient of {name!r} was computed more often than backward_passes_per_step "
                "before step() or synchronize(); to accumulate gradients over several backward "
                "passes, increase backward_passes_per_step; if another DistributedOptimizer has "
                "this parameter now, delete this one before"
            )
        passes_left[index] = left

    return count_pass
