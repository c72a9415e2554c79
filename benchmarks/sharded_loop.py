"""The training step of ``sharded.py``; runs in the workers."""

from __future__ import annotations

from typing import Any

import torch
from training_loop import MODELS, TrainingLoop

__all__ = ["OPTIMIZERS", "ShardedLoop"]

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "SGD": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 1e-3}),
}


class ShardedLoop(TrainingLoop):
    """Steps of a model and an optimizer, distributed in the contestant's way."""

    def prepare(self, *, model: str, optimizer: str = "SGD") -> float:
        """Build both and make two steps; the sum of the weights, to compare the ranks."""
        build, sample_shape, batch_size = MODELS[model]
        torch.manual_seed(0)
        network = build()
        kind, options = OPTIMIZERS[optimizer]
        wrapped, self._optimizer = self._contestant.distribute(
            network, kind(network.parameters(), **options)
        )
        self._begin(wrapped, self._optimizer, (batch_size, *sample_shape))
        return sum(float(p.detach().double().sum()) for p in network.parameters())

    def state_bytes(self) -> float:
        """Bytes of optimizer state on this rank."""
        state = _own_optimizer(self._optimizer).state
        tensors = [value for entries in state.values() for value in entries.values()]
        return float(sum(t.numel() * t.element_size() for t in tensors if torch.is_tensor(t)))

    def release(self) -> None:
        self._optimizer: Any = None
        super().release()


def _own_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer that holds this rank's state."""
    if hasattr(optimizer, "_share"):
        return optimizer._share._inner
    return getattr(optimizer, "optim", optimizer)
