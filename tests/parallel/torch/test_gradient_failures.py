"""A rank that cannot start a reduction raises its own error, and waits for nothing unsent."""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd
from horovod.torch import topk


@pytest.mark.parametrize("failing_step", [0, 1])
def test_a_rank_that_cannot_compress_tells_why(monkeypatch, failing_step):
    if hvd.size() == 1:
        pytest.skip("one rank compresses nothing")
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        compression=hvd.Compression.topk(0.1),
        groups=[[model[0].weight], [model[1].weight]],
    )
    is_failing, genuine = hvd.rank() == hvd.size() - 1, topk.TopKExchange._plan

    def without_memory(self, name, gradient):
        if "1.weight" in name:
            raise RuntimeError("no memory is left")
        return genuine(self, name, gradient)

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()

    for _ in range(failing_step):
        step()
    if is_failing:
        monkeypatch.setattr(topk.TopKExchange, "_plan", without_memory)
        with pytest.raises(RuntimeError, match="no memory is left"):
            step()
        hvd.shutdown()
    else:
        with pytest.raises(hvd.HorovodInternalError):
            step()
        hvd.shutdown()
    hvd.init()
