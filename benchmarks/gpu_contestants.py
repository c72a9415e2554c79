"""The contestants of ``gpu.py``; all ranks use the machine's first card."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from contestants import Gloo, Horovod, Operation

__all__ = ["Nothing", "OverNccl", "ThroughHost", "TorchOnHorovod", "TorchOnNccl"]


def _be_own_host(rank_name: str) -> None:
    """NCCL refuses two ranks of one host on one card: each becomes a host of its own."""
    os.environ["NCCL_HOSTID"] = f"host-{os.environ[rank_name]}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    os.environ["HOROVOD_GPU_OPERATIONS"] = "nccl"


class Nothing(Gloo):
    """No communication: sums do nothing, and each rank trains alone."""

    def blocking(self, tensor: Any) -> Operation:
        return partial(len, tensor)

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        return model, optimizer


class ThroughHost(Horovod):
    """Ours without CUDA IPC and NCCL."""

    def __init__(self) -> None:
        os.environ["HOROVOD_GPU_OPERATIONS"] = "host"
        super().__init__()


class OverNccl(Horovod):
    """Ours over NCCL, also where ranks share a card."""

    def __init__(self) -> None:
        _be_own_host("HOROVOD_RANK")
        super().__init__()


class TorchOnNccl(Gloo):
    """torch.distributed on NCCL, also where ranks share a card."""

    backend = "nccl"

    def __init__(self) -> None:
        _be_own_host("BENCH_RANK")
        super().__init__()

    def barrier(self) -> None:
        self._dist.barrier(device_ids=[0])


class TorchOnHorovod(Gloo):
    """torch.distributed on ours over NCCL, also where ranks share a card."""

    backend = "horovod"

    def __init__(self) -> None:
        import horovod.torch as hvd

        _be_own_host("BENCH_RANK")
        super().__init__()
        self.metrics = hvd.metrics
