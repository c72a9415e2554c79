"""The optimizer with ``sharded=True``: ranks share its step, each keeps its part of the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from horovod.core import operations
from horovod.core.compression import check_not_on_links
from horovod.core.operations import Sharded
from horovod.torch.gradient_exchange import Compression
from horovod.torch.reducing_optimizer import _DistributedOptimizer
from horovod.torch.shared_step import SharedStep
from horovod.torch.shares import marked

_ELEMENTWISE = tuple(
    getattr(torch.optim, name)
    for name in (
        *("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax"),
        *("NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
    )
)


class ShardedOptimizer(_DistributedOptimizer):
    """What ``sharded=True`` adds to an optimizer class; never made on its own.

    ``state`` is empty, but for what a ``state_dict`` has brought and the next step distributes.
    """

    _share: SharedStep
    _has_shares = False  # gradients are reduced in this rank's share only

    def synchronize(self) -> None:
        """Wait until all gradients are reduced, on all ranks, and in ``p.grad``."""
        super().synchronize()
        self._share.gather_gradients()

    def state_dict(self) -> dict[str, Any]:
        """The whole state on the first rank of the set; on the others no state, only options.

        Blocks until all ranks of the set call it. The dict of the others cannot be loaded.
        """
        return self._state_dict(everywhere=False)

    def whole_state_dict(self) -> dict[str, Any]:
        """The whole state on every rank; blocks until all ranks of the set call it."""
        return self._state_dict(everywhere=True)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a whole state, of any number of ranks; each rank keeps its share of it.

        All ranks load the same, or the root does and ``broadcast_optimizer_state`` follows.

        Raises:
            ValueError: it is one that ``state_dict`` gave to another rank than the first.
        """
        super().load_state_dict(state_dict)
        self.forget_shares()

    def forget_shares(self) -> None:
        """Start from ``state``, which is whole."""
        self._share.forget()

    @property
    def is_shared(self) -> bool:
        """Whether this rank has state of its share only, which ``state_dict`` would gather."""
        return self._share.has_stepped

    def _state_dict(self, everywhere: bool) -> dict[str, Any]:
        if not self._share.has_stepped:
            return super().state_dict()
        left, gathered = self.state, self._share.gathered(everywhere)
        self.state = {**left, **gathered}  # type: ignore[assignment]
        try:
            found = super().state_dict()
        finally:
            self.state = left
        return marked(found) if self._share.has_state and not gathered else found

    def _reduce(self) -> None:
        super().synchronize()
        self._has_shares = True

    @torch.optim.Optimizer.profile_hook_step
    def _step_original(self, closure: Callable[[], Any] | None) -> Any:
        is_reduced, self._has_shares = not self._has_shares, False
        return self._share.step(closure, is_reduced)


def check_elementwise(
    sharded: Sharded, optimizer: torch.optim.Optimizer, compression: Compression
) -> None:
    """``ValueError`` if ranks cannot share the step of this optimizer."""
    if not sharded:
        return
    check_not_on_links(compression, "DistributedOptimizer: sharded=True")
    if sharded is True:
        kind = type(optimizer)
        names = [known.__name__ for known in _ELEMENTWISE]
        operations.check_elementwise(kind, kind in _ELEMENTWISE, names)
