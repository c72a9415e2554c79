"""The measured loops of ``slow_networks.py``; runs in the workers."""

from __future__ import annotations

import torch
from characters import Text, Transformer, loss_of
from collective_loop import CollectiveLoop
from torch import nn
from torch.nn import functional as F  # noqa: N812
from training_loop import TrainingLoop

__all__ = ["SlowNetworksLoop"]

_EPOCHS = 30
_BATCH = 32
_WIDTH = 128
_SAMPLES = 4
_TEXT_STEPS, _TEXT_ROWS = 200, 8


class SlowNetworksLoop(CollectiveLoop, TrainingLoop):
    """A sum, a training step, or a whole training on digits or on text."""

    def prepare_step(self, *, model: str) -> float:
        """As ``prepare``, with so few samples that a slow link takes most of the step."""
        return self._prepare(model, _SAMPLES)

    def train_on_text(self, *, seed: int, compression: str) -> float:
        """The validation loss of a small transformer of characters."""
        import horovod.torch as hvd

        text = Text()
        torch.manual_seed(seed)
        model = Transformer(text.character_count, width=_WIDTH, layers=2, heads=4)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), lr=1e-3),
            named_parameters=model.named_parameters(),
            compression=getattr(hvd.Compression, compression),
        )
        generator = torch.Generator().manual_seed(1000 * seed + hvd.rank())
        for _ in range(_TEXT_STEPS):
            optimizer.zero_grad()
            loss_of(model, text.batch(_TEXT_ROWS, generator)).backward()
            optimizer.step()
        return text.validation_loss(model)

    def train_on_digits(self, *, seed: int, compression: str) -> float:
        """The accuracy on a quarter of the digits, which is not trained on."""
        import horovod.torch as hvd

        inputs, labels = _digits(seed)
        count = 3 * len(labels) // 4
        mine = torch.arange(count)[hvd.rank() :: hvd.size()]
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 10))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
            named_parameters=model.named_parameters(),
            compression=getattr(hvd.Compression, compression),
        )
        for epoch in range(_EPOCHS):
            generator = torch.Generator().manual_seed(1000 * seed + epoch)
            order = mine[torch.randperm(len(mine), generator=generator)]
            for batch in order[: len(order) // _BATCH * _BATCH].split(_BATCH):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[batch]), labels[batch]).backward()
                optimizer.step()
        found = model(inputs[count:]).argmax(1)
        return float((found == labels[count:]).double().mean())


def _digits(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All pictures, scaled to at most 1, and their digits, in an order of their own."""
    from sklearn.datasets import load_digits

    pictures, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    inputs = torch.as_tensor(pictures / 16.0, dtype=torch.float32)
    return inputs[order], torch.as_tensor(digits)[order]
