"""Trains a transformer of characters with local steps, or without; for ``local_steps.py``."""

from __future__ import annotations

import time
from pydoc_data.topics import topics
from typing import Any

import torch
from loop import Loop
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

__all__ = ["SYNCHRONOUS", "LocalStepsLoop", "ways"]

SYNCHRONOUS = "synchronous"
_CONTEXT = 64
_BATCH = 16
_WIDTH = 128
_LAYERS = 5


def ways(sync_every: int) -> dict[str, dict[str, Any]]:
    """The arguments of ``DiLoCo`` by name; ``compression`` by its name."""
    streaming = {"fragments": 4, "overlap": max(1, sync_every // 8)}
    return {
        "DiLoCo": {"sync_every": sync_every},
        "streaming, bf16": {"sync_every": sync_every, **streaming, "compression": "bf16"},
    }


class _Model(nn.Module):
    """About a million parameters."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, _WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(_CONTEXT, _WIDTH))
        layer = nn.TransformerEncoderLayer(
            _WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, characters)
        self.mask = nn.Transformer.generate_square_subsequent_mask(_CONTEXT)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.embed(text) + self.place
        hidden = self.body(hidden, mask=self.mask, is_causal=True)
        return self.head(self.norm(hidden))


class LocalStepsLoop(Loop):
    """Training on the help texts that ship with Python; the last part of them is for validation."""

    def __init__(self, contestant: Any) -> None:
        super().__init__(contestant)
        text = "\n".join(topics[name] for name in sorted(topics))
        characters = sorted(set(text))
        number_of = {character: number for number, character in enumerate(characters)}
        numbers = torch.tensor([number_of[character] for character in text])
        end = len(numbers) * 19 // 20
        self._character_count = len(characters)
        self._train, self._validation = numbers[:end], numbers[end:]

    def prepare(self, *, way: str, sync_every: int) -> int:
        """A new model and its optimizer, equal for all ways; the number of parameters."""
        import horovod.torch as hvd

        torch.manual_seed(0)
        self._model = _Model(self._character_count)
        optimizer: Any = torch.optim.AdamW(self._model.parameters(), lr=1e-3)
        if way == SYNCHRONOUS:
            optimizer = hvd.DistributedOptimizer(optimizer, self._model.named_parameters())
        else:
            options = dict(ways(sync_every)[way])
            options["compression"] = getattr(hvd.Compression, options.get("compression", "none"))
            optimizer = hvd.DiLoCo(optimizer, **options)
        self._optimizer = optimizer
        self._samples = torch.Generator().manual_seed(1 + self._contestant.rank)
        return sum(param.numel() for param in self._model.parameters())

    def train(self, *, steps: int) -> tuple[float, float]:
        """Seconds of so many steps, and how long of them this rank has waited for collectives."""
        self._contestant.barrier()
        start, waited = time.perf_counter(), self._contestant.metrics()["blocked_seconds"]
        for _ in range(steps):
            self._optimizer.zero_grad()
            self._loss(*_batch(self._train, self._samples)).backward()
            self._optimizer.step()
        waited = self._contestant.metrics()["blocked_seconds"] - waited
        return time.perf_counter() - start, waited

    @torch.no_grad()
    def validate(self) -> float:
        """The loss of the agreed model on the validation text."""
        if hasattr(self._optimizer, "finish"):
            self._optimizer.finish()
        generator = torch.Generator().manual_seed(0)
        losses = [self._loss(*_batch(self._validation, generator)).item() for _ in range(16)]
        return sum(losses) / len(losses)

    def finish(self) -> None:
        """Leave nothing under way."""
        if hasattr(self._optimizer, "finish"):
            self._optimizer.finish()

    def _loss(self, text: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(self._model(text).flatten(0, 1), following.flatten())


def _batch(text: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - _CONTEXT - 1, (_BATCH,), generator=generator)
    rows = torch.stack([text[start : start + _CONTEXT + 1] for start in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]
