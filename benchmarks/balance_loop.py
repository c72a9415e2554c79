"""The training step of ``balance.py``; runs in the workers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from loop import Loop
from torch import nn

__all__ = ["BATCH", "SLOW", "BalanceLoop"]

BATCH = 512  # samples of a rank and step, in the mean
SLOW = 3  # times as long as the others takes the last rank
_WIDTH = 512


class BalanceLoop(Loop):
    """Steps of ranks of which the last one is slow."""

    def prepare(self, *, way: str) -> None:
        """``way``: ``alone`` without communication, ``equal`` or ``balanced`` batches."""
        import horovod.torch as hvd

        torch.manual_seed(0)
        self._repeats = SLOW if self._contestant.rank == self._contestant.size - 1 else 1
        self._model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(6)))
        self._optimizer: torch.optim.Optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-4)
        self._sampler = None
        if way == "balanced":
            self._sampler = hvd.BalancedSampler(range(1_000_000), BATCH, shuffle=False)
        self._sizes = self._batch_sizes()
        if way != "alone":
            self._optimizer = hvd.DistributedOptimizer(
                self._optimizer, self._model.named_parameters()
            )
        self._run = self._step
        for _ in range(20):
            self._run()

    def _batch_sizes(self) -> Iterator[int]:
        while True:
            for batch in self._sampler or [range(BATCH)] * 1000:
                yield len(batch)

    def _step(self) -> None:
        size = next(self._sizes)
        self._optimizer.zero_grad()
        inputs = torch.ones(size, _WIDTH)
        for _ in range(self._repeats - 1):
            torch.autograd.grad(self._loss(inputs), list(self._model.parameters()))
        weight = 1.0 if self._sampler is None else self._sampler.weight(size)
        (self._loss(inputs) * weight).backward()
        self._optimizer.step()

    def _loss(self, inputs: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self._model(inputs).square().mean()
        return loss
