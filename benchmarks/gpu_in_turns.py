"""Training steps on one CUDA GPU with and without communication, in turns in one process.

    horovodrun -np 1 python benchmarks/gpu_in_turns.py
    NCCL_SOCKET_IFNAME=lo HOROVOD_GPU_OPERATIONS=nccl horovodrun -np 2 \
        bash -c 'NCCL_HOSTID=h$HOROVOD_RANK exec python benchmarks/gpu_in_turns.py --record'

``gpu.py`` gives each contestant processes of its own, so its times differ by the state of the card,
too. Here the steps of all contestants follow each other in changing order, with the model and batch
of ``gpu.py``. Rank 0 prints medians and quartiles. With ``--record`` each rank prints of a few
further steps when each bucket's kernel of NCCL was launched, when it began on the GPU, and how long
it took, in ms after the first launch of the step. Recording makes steps slower.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable
from functools import partial
from statistics import median, quantiles
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from gpu_loop import GpuLoop
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import horovod.torch as hvd

_ROUNDS = 40
_RECORDED_STEPS = 5
# Of a bucket, in ms: when its kernel was launched and began, and how long it took.
_Bucket = tuple[float, float, float]


def main() -> None:
    is_recorded = _parse_arguments().record
    hvd.init()
    loops = {"no communication": _loop(lambda model, optimizer: (model, optimizer))}
    if hvd.size() > 1:
        nccl = _join_torch()
        loops["torch on nccl"] = _loop(partial(_ddp, group=nccl))
        loops["the same without buffers"] = _loop(partial(_ddp, group=nccl, has_buffers=False))
        loops["torch on horovod"] = _loop(_ddp)
    loops["horovod"] = _loop(_horovod)
    for name, times in _measure(loops).items():
        low, middle, high = quantiles(times, n=4)
        if hvd.rank() == 0:
            print(f"{name:25} {middle:7.2f} ms ({low:.2f} to {high:.2f})", flush=True)
    if is_recorded:
        for name, loop in loops.items():
            steps = [_record(loop) for _ in range(_RECORDED_STEPS)]
            print(f"{name:25} rank {hvd.rank()}: {_text_of(steps)}", flush=True)


def _measure(loops: dict[str, GpuLoop]) -> dict[str, list[float]]:
    """Milliseconds of the steps of each contestant."""
    times: dict[str, list[float]] = {name: [] for name in loops}
    order, names = random.Random(0), list(loops)
    for _ in range(_ROUNDS):
        order.shuffle(names)
        for name in names:
            times[name].append(1e3 * loops[name].measure(iterations=1))
    return times


def _record(loop: GpuLoop) -> list[_Bucket]:
    """The buckets of one step."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        loop.measure(iterations=1)
    events = recorded.profiler.kineto_results.events()
    launches = {e.correlation_id(): e.start_ns() for e in events if "Launch" in e.name()}
    begin = min(launches.values(), default=0)
    kernels = [e for e in events if "nccl" in e.name().lower() and "Launch" not in e.name()]
    return [
        (
            1e-6 * (launches.get(kernel.correlation_id(), begin) - begin),
            1e-6 * (kernel.start_ns() - begin),
            1e-6 * kernel.duration_ns(),
        )
        for kernel in sorted(kernels, key=lambda kernel: kernel.start_ns())
    ]


def _text_of(steps: list[list[_Bucket]]) -> str:
    """The medians of each bucket: launched, began + took."""
    buckets = zip(*steps, strict=False)
    found = [[median(each) for each in zip(*bucket, strict=True)] for bucket in buckets]
    return " ".join(f"{at:.1f}, {begun:.1f} + {took:.1f};" for at, begun, took in found)


def _loop(distribute: Callable[[Any, Any], tuple[Any, Any]]) -> GpuLoop:
    contestant = SimpleNamespace(rank=hvd.rank(), barrier=hvd.barrier, distribute=distribute)
    loop = GpuLoop(contestant)
    loop.build_model()
    loop.prepare_step()
    return loop


def _join_torch() -> Any:
    """Join the default group of torch, which is on Horovod. Returns one on NCCL."""
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, root_rank=0)
    dist.init_process_group(
        "horovod", init_method=f"file://{folder}/store", rank=hvd.rank(), world_size=hvd.size()
    )
    return dist.new_group(backend="nccl")


def _ddp(
    model: Any, optimizer: Any, group: Any = None, has_buffers: bool = True
) -> tuple[Any, Any]:
    """Without buffers as Horovod, which does not broadcast batch normalisation's statistics."""
    model = DistributedDataParallel(model, process_group=group, broadcast_buffers=has_buffers)
    return model, optimizer


def _horovod(model: Any, optimizer: Any) -> tuple[Any, Any]:
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="also when buckets run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
