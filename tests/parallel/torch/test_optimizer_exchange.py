"""DistributedOptimizer with a compressor that reduces in two rounds and keeps state."""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd
from horovod.torch import adapter, gradient_reducer


class TwoRounds:
    """Sends gradients as whole numbers first, then what is left; exact in the end."""

    def __init__(self):
        self.rounds = {}

    def make_exchange(self, op, prescale, postscale, process_set):
        assert (op, prescale, postscale) == (hvd.Average, 1.0, 1.0)
        return self

    def start(self, names, gradients):
        coarse = [gradient.round().contiguous() for gradient in gradients]
        handles = [
            hvd.allreduce_async_(part, name=f"{name}.coarse")
            for name, part in zip(names, coarse, strict=True)
        ]
        return Round(self, names, gradients, coarse, handles)


class Round:
    def __init__(self, compression, names, gradients, coarse, handles):
        self.compression, self.names, self.gradients = compression, names, gradients
        self.coarse, self.handles = coarse, handles

    def finish(self):
        fine = [gradient - gradient.round() for gradient in self.gradients]
        for handle in self.handles:
            hvd.synchronize(handle)
        parts = zip(self.names, self.gradients, self.coarse, fine, strict=True)
        for name, gradient, coarse, rest in parts:
            gradient.copy_(coarse + hvd.allreduce(rest.contiguous(), name=f"{name}.fine"))
            self.compression.rounds[name] = self.compression.rounds.get(name, 0) + 1


@pytest.mark.parametrize("spare_cores", [False, True])
@pytest.mark.parametrize("groups", [None, 2])
def test_two_rounds(monkeypatch, make_model, assert_same_everywhere, spare_cores, groups):
    """Ranks reach their parameters in opposite orders, so batches start in opposite orders."""
    monkeypatch.setattr(adapter, "spare_cores", lambda: spare_cores)
    monkeypatch.setattr(gradient_reducer, "BATCH_BYTES", 100)
    model, compression = make_model(), TwoRounds()
    params = list(model.parameters())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.01),
        model.named_parameters(),
        compression=compression,
        groups=groups,
    )
    for step in range(3):
        optimizer.zero_grad()
        for param in params[:: 1 if hvd.rank() % 2 else -1]:
            (param.sum() * (hvd.rank() + 1.25 + step)).backward()
        optimizer.step()
        expected = (hvd.size() + 1) / 2 + 0.25 + step
        for param in params:
            torch.testing.assert_close(param.grad, torch.full_like(param, expected))
    assert_same_everywhere(params)
    if hvd.size() > 1:
        assert compression.rounds == dict.fromkeys(dict(model.named_parameters()), 3)
