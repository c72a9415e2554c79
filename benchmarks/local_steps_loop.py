"""Trains a transformer of characters with local steps, or without; for ``local_steps.py``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from characters import Text, Transformer, loss_of
from loop import Loop

__all__ = [
    "LR",
    "ROWS",
    "STREAMING",
    "SYNCHRONOUS",
    "LocalStepsLoop",
    "learning_rate",
    "make_training",
    "ways",
]

SYNCHRONOUS = "synchronous"
STREAMING = "streaming, int8"
_SPARSE = "LocalSGD, topk"
ROWS = 4  # of a rank's batch
LR = 1e-3
_WARM_UP_STEPS = 32


def ways(sync_every: int) -> dict[str, dict[str, Any]]:
    """The arguments of ``DiLoCo`` by name, or of ``LocalSGD``; ``compression`` by its name.

    A fragment takes about a step on the slow link, so four steps hide it. The largest 32nd of the
    elements is an eighth of the bytes of int8, and so sent eight times as often; two steps hide it.
    """
    sparse = {"sync_every": max(1, sync_every // 8), "overlap": 2}
    streaming = {"fragments": 4, "overlap": 4, "merge_weight": 1.0}
    return {
        "DiLoCo, int8": {"sync_every": sync_every, "compression": "int8"},
        _SPARSE: {**sparse, "compression": "topk"},
        STREAMING: {"sync_every": sync_every, **streaming, "compression": "int8"},
    }


class LocalStepsLoop(Loop):
    """Training of about 10 million parameters."""

    def __init__(self, contestant: Any) -> None:
        super().__init__(contestant)
        self._text = Text()
        self._kept: dict[str, torch.Tensor] = {}

    def prepare(self, *, way: str, sync_every: int, steps: int = 0) -> int:
        """The kept model, or a new one, and an optimizer; the number of parameters.

        ``steps``: of the whole training, over which the learning rate falls; 0: it stays.
        """
        self._model, self._optimizer = make_training(self._text, way, sync_every, self._kept)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, learning_rate(steps))
        self._samples = torch.Generator().manual_seed(1 + self._contestant.rank)
        return sum(param.numel() for param in self._model.parameters())

    def train(self, *, steps: int) -> tuple[float, float]:
        """Seconds of so many steps, and how long of them this rank has waited for collectives."""
        self._contestant.barrier()
        start, waited = time.perf_counter(), self._contestant.metrics()["blocked_seconds"]
        for _ in range(steps):
            self._optimizer.zero_grad()
            loss_of(self._model, self._text.batch(ROWS, self._samples)).backward()
            self._optimizer.step()
            self._schedule.step()
        waited = self._contestant.metrics()["blocked_seconds"] - waited
        return time.perf_counter() - start, waited

    def validate(self) -> float:
        """The loss of the agreed model on the validation text."""
        self.finish()
        return self._text.validation_loss(self._model)

    def keep(self) -> None:
        """Let later trainings begin with this model."""
        self._kept = {name: value.clone() for name, value in self._model.state_dict().items()}

    def finish(self) -> None:
        """Leave nothing under way."""
        if hasattr(self._optimizer, "finish"):
            self._optimizer.finish()


def make_training(
    text: Text, way: str, sync_every: int, values: Mapping[str, torch.Tensor] | None = None
) -> tuple[Transformer, Any]:
    """A model, with these ``values`` if there are any, and its optimizer; the same at each call."""
    import horovod.torch as hvd

    torch.manual_seed(0)
    model = Transformer(text.character_count, width=384, layers=6, heads=6)
    if values:
        model.load_state_dict(dict(values))
    inner = torch.optim.AdamW(model.parameters(), lr=LR)
    if way == SYNCHRONOUS:
        return model, hvd.DistributedOptimizer(inner, model.named_parameters())
    options = dict(ways(sync_every)[way])
    options["compression"] = getattr(hvd.Compression, options["compression"])
    if way == _SPARSE:
        options["compression"] = hvd.Compression.topk(1 / 32, half=True)
        return model, hvd.LocalSGD(inner, **options)
    return model, hvd.DiLoCo(inner, **options)


def learning_rate(steps: int) -> Callable[[int], float]:
    """The factor of a step: a short rise, then half a cosine down to a tenth."""

    def factor(step: int) -> float:
        fall = 0.55 + 0.45 * math.cos(math.pi * min(step, steps) / steps) if steps else 1.0
        return min(1.0, (step + 1) / _WARM_UP_STEPS) * fall

    return factor
