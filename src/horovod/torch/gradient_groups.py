"""Gradients that leave together: one grouped operation, or one batch of a compressor's own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from horovod.core.gradient_groups import batches_of
from horovod.torch.gradient_exchange import Pending


class GradientGroup:
    """Counts down the gradients of one group in a step.

    Args:
        name: name of the grouped operation; the same on every rank.
        indices: its parameters; the same in the same order on every rank.
    """

    __slots__ = ("indices", "is_sent", "name", "pending", "waiting")

    def __init__(self, name: str, indices: list[int]) -> None:
        self.name = name
        self.indices = indices
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
