"""The operations and training steps of ``ddp.py``; runs in the workers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from training_loop import MODELS, TrainingLoop

__all__ = ["FSDP2", "OPERATIONS", "STEPS", "DdpLoop"]

OPERATIONS = {
    "all_reduce 4B": ("blocking", 1),
    "all_reduce 64MB": ("blocking", 16 * 2**20),
    "send/recv 4B": ("message", 1),
    "send/recv 64MB": ("message", 16 * 2**20),
}
STEPS = ("8 tensors, 25 M parameters", "602 tensors, 0.6 M parameters")
FSDP2 = "FSDP2, transformer of 25 M parameters"
_WIDTH, _LAYERS, _SEQUENCE, _BATCH = 512, 8, 32, 2


class DdpLoop(TrainingLoop):
    """One operation, or one training step."""

    def prepare_operation(self, *, work: str) -> float | None:
        """Make the operation's tensor; None where the contestant has no such operation."""
        method, element_count = OPERATIONS[work]
        make = getattr(self._contestant, method, None)
        if make is None:
            return None
        tensor = self._contestant.tensor(element_count)
        operation = make(tensor)
        if operation is None:
            return None
        operation()
        self._run = operation
        return float(tensor[0])

    def prepare_step(self, *, work: str) -> float | None:
        """Build a model and make two steps; the sum of the weights, to compare the ranks."""
        if work in MODELS:
            return self.prepare(model=work)
        shard = getattr(self._contestant, "shard", None)
        if shard is None:
            return None
        torch.manual_seed(0)
        layers = [
            nn.TransformerEncoderLayer(_WIDTH, 8, 4 * _WIDTH, dropout=0.0, batch_first=True)
            for _ in range(_LAYERS)
        ]
        model = shard(layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        self._begin(model, optimizer, (_BATCH, _SEQUENCE, _WIDTH))
        return sum(_sum_of(parameter.detach()) for parameter in model.parameters())


def _sum_of(parameter: Any) -> float:
    whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return float(whole.double().sum())
