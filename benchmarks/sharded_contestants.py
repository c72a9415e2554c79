"""The libraries of ``sharded.py``: ranks share the optimizer's step."""

from __future__ import annotations

from typing import Any

from contestants import Gloo, Horovod

__all__ = ["Sharded", "Zero"]


class Sharded(Horovod):
    """Ours with ``sharded=True``."""

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        named = model.named_parameters()
        return model, self._hvd.DistributedOptimizer(optimizer, named, sharded=True)


class Zero(Gloo):
    """DDP with torch's ZeroRedundancyOptimizer, on Gloo."""

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        wrapped, _ = super().distribute(model, optimizer)
        zero = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=type(optimizer), **optimizer.defaults
        )
        return wrapped, zero
