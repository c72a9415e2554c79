"""Training steps on one CUDA GPU with and without communication, in turns in one process.

    horovodrun -np 1 python benchmarks/gpu_in_turns.py
    NCCL_SOCKET_IFNAME=lo HOROVOD_GPU_OPERATIONS=nccl horovodrun -np 2 \
        bash -c 'NCCL_HOSTID=h$HOROVOD_RANK exec python benchmarks/gpu_in_turns.py'

``gpu.py`` gives each contestant processes of its own, so its times differ by the state of the card,
too. Here the steps of all contestants follow each other, with the model and batch of ``gpu.py``.
Rank 0 prints medians and quartiles.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from statistics import quantiles
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from gpu_loop import GpuLoop
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd

_ROUNDS = 24


def main() -> None:
    hvd.init()
    loops = {"no communication": _loop(lambda model, optimizer: (model, optimizer))}
    if hvd.size() > 1:
        _join_torch()
        high = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        loops["torch on nccl"] = _loop(_ddp(None))
        loops["the same, high priority"] = _loop(_ddp(dist.new_group(pg_options=high)))
    loops["horovod"] = _loop(_horovod)
    times: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(_ROUNDS):
        for name, loop in loops.items():
            times[name].append(1e3 * loop.measure(iterations=1))
    for name, found in times.items():
        low, median, high_ms = quantiles(found, n=4)
        if hvd.rank() == 0:
            print(f"{name:24} {median:7.2f} ms ({low:.2f} to {high_ms:.2f})", flush=True)


def _loop(distribute: Callable[[Any, Any], tuple[Any, Any]]) -> GpuLoop:
    contestant = SimpleNamespace(rank=hvd.rank(), barrier=hvd.barrier, distribute=distribute)
    loop = GpuLoop(contestant)
    loop.build_model()
    loop.prepare_step()
    return loop


def _join_torch() -> None:
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, root_rank=0)
    dist.init_process_group(
        "nccl", init_method=f"file://{folder}/store", rank=hvd.rank(), world_size=hvd.size()
    )


def _ddp(group: dist.ProcessGroup | None) -> Callable[[Any, Any], tuple[Any, Any]]:
    return lambda model, optimizer: (
        DistributedDataParallel(model, process_group=group),
        optimizer,
    )


def _horovod(model: Any, optimizer: Any) -> tuple[Any, Any]:
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


if __name__ == "__main__":
    main()
