"""The measured libraries: one small adapter each, all with the same few methods.

Runs in the worker processes. Each adapter imports its library when it is made, because no worker
has all of them (MPICH has its own venv, without torch).
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rendezvous_files import publish, read_published

__all__ = ["CONTESTANTS", "Contestant", "Horovod"]

Operation = Callable[[], Any]


class Contestant(Protocol):
    """What a measured loop needs of a library. Tensors are of the library's native kind."""

    rank: int
    size: int

    def tensor(self, count: int) -> Any:
        """``count`` float32 zeros in written pages; they stay finite when summed many times."""

    def blocking(self, tensor: Any) -> Operation:
        """A call that sums ``tensor`` over all ranks in place and returns when it is done."""

    def many(self, tensors: Sequence[Any]) -> Operation:
        """A call that starts the sums of all ``tensors`` in place, then waits for all of them."""

    def exchange(self, collective: str, tensor: Any, *, is_output_new: bool) -> Operation:
        """A blocking call of allgather, reducescatter (sum), alltoall or broadcast (in place, from
        rank 0) on ``tensor``; returns the result. If the library writes into a given tensor, this
        is always the same one, or a new one per call if ``is_output_new``."""

    def barrier(self) -> None: ...


class _OnTorch:
    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch = torch

    def tensor(self, count: int) -> Any:
        return self._torch.full((count,), 0.0, dtype=self._torch.float32)


class Horovod(_OnTorch):
    """Ours, as a script uses it."""

    def __init__(self) -> None:
        super().__init__()
        import horovod.torch as hvd

        hvd.init()
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.metrics = hvd.metrics

    def blocking(self, tensor: Any) -> Operation:
        return partial(self._hvd.allreduce_, tensor, name="blocking", op=self._hvd.Sum)

    def many(self, tensors: Sequence[Any]) -> Operation:
        start, wait, op = self._hvd.allreduce_async_, self._hvd.synchronize, self._hvd.Sum
        named = [(tensor, f"many.{index}") for index, tensor in enumerate(tensors)]

        def run() -> None:
            handles = [start(tensor, name=name, op=op) for tensor, name in named]
            for handle in handles:
                wait(handle)

        return run

    def grouped(self, tensors: Sequence[Any]) -> Operation:
        """Like ``many``, in one grouped call."""
        return partial(self._hvd.grouped_allreduce_, tensors, name="grouped", op=self._hvd.Sum)

    def batched(self, tensors: Sequence[Any]) -> Operation:
        """Like ``many``, as ``DistributedOptimizer`` does it at the end of backward."""
        from horovod.core.operations import Intent
        from horovod.torch.adapter import allreduce_batch_async_

        names = [f"allreduce.batch.{index}" for index in range(len(tensors))]
        wait, op = self._hvd.synchronize, self._hvd.Sum
        return lambda: wait(allreduce_batch_async_(tensors, names, op, intent=Intent.WAIT))

    def exchange(self, collective: str, tensor: Any, *, is_output_new: bool) -> Operation:
        if collective == "broadcast":
            return partial(self._hvd.broadcast_, tensor, 0, name=collective)
        run = getattr(self._hvd, collective)  # the interface always makes a new output
        options = {"op": self._hvd.Sum} if collective == "reducescatter" else {}
        return partial(run, tensor, name=collective, **options)

    def barrier(self) -> None:
        self._hvd.barrier()

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        """``model`` and ``optimizer`` prepared for data-parallel training with this library."""
        named = model.named_parameters()
        optimizer = self._hvd.DistributedOptimizer(optimizer, named_parameters=named)
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, optimizer


class KeepingMemory(Horovod):
    """Ours with ``--keep-memory``."""

    def __init__(self) -> None:
        os.environ["HOROVOD_KEEP_MEMORY"] = "1"
        super().__init__()


class WaitingFloor(Horovod):
    """What any synchronous training needs: a rank waits until the others have their gradients."""

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        optimizer.register_step_pre_hook(lambda *_: self.barrier())
        return model, optimizer


class ArenaFloor(Horovod):
    """What ranks would need at least if gradients were in memory that they share (an arena).

    Autograd makes new gradients after the usual ``zero_grad``, so each is copied there. Nothing is
    reduced; two barriers stand for waiting until all gradients, and all sums, are there.
    """

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        params = list(model.parameters())
        sizes = [param.numel() for param in params]
        places = self._torch.empty(sum(sizes)).share_memory_().split(sizes)
        for param, place in zip(params, places, strict=True):
            param.register_post_accumulate_grad_hook(partial(self._move, place.view_as(param)))
        optimizer.register_step_pre_hook(self._wait)
        return model, optimizer

    def _wait(self, *_: Any) -> None:
        self.barrier()
        self.barrier()

    @staticmethod
    def _move(place: Any, param: Any) -> None:
        place.copy_(param.grad)
        param.grad = place


class Gloo(_OnTorch):
    """torch.distributed on Gloo; ranks find each other through a file."""

    backend = "gloo"

    def __init__(self) -> None:
        super().__init__()
        import torch.distributed as dist

        self.rank, self.size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
        store = f"file://{os.environ['BENCH_STORE']}"
        dist.init_process_group(
            self.backend, init_method=store, rank=self.rank, world_size=self.size
        )
        self._dist = dist

    def blocking(self, tensor: Any) -> Operation:
        return partial(self._dist.all_reduce, tensor)

    def many(self, tensors: Sequence[Any]) -> Operation:
        all_reduce = self._dist.all_reduce

        def run() -> None:
            for work in [all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

        return run

    def exchange(self, collective: str, tensor: Any, *, is_output_new: bool) -> Operation:
        dist = self._dist
        if collective == "broadcast":
            return partial(_returning, tensor, dist.broadcast, tensor, 0)
        run = {
            "allgather": dist.all_gather_single,
            "reducescatter": dist.reduce_scatter_single,
            "alltoall": dist.all_to_all_single,
        }[collective]
        count = _output_count(collective, tensor.numel(), self.size)
        make_output = partial(self._torch.empty, count)
        return _writing(lambda output: run(output, tensor), make_output, is_output_new)

    def barrier(self) -> None:
        self._dist.barrier()

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        return self._torch.nn.parallel.DistributedDataParallel(model), optimizer


class Alone(Gloo):
    """No communication: a rank copies its tensor instead of reducing it, and trains alone.

    The ranks still start each loop together, so that all cores are equally busy.
    """

    def tensor(self, count: int) -> Any:
        return np.full(count, 0, dtype=np.float32)

    def blocking(self, tensor: Any) -> Operation:
        return partial(np.copyto, self.tensor(tensor.size), tensor)

    def many(self, tensors: Sequence[Any]) -> Operation:
        copies = [self.blocking(tensor) for tensor in tensors]

        def run() -> None:
            for copy in copies:
                copy()

        return run

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        return model, optimizer


class Mpi:
    """mpi4py on the MPI that started this process; numpy arrays, its cheapest buffers."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = MPI.COMM_WORLD
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()

    def tensor(self, count: int) -> Any:
        return np.full(count, 0, dtype=np.float32)

    def blocking(self, tensor: Any) -> Operation:
        return partial(self._comm.Allreduce, self._mpi.IN_PLACE, tensor)

    def many(self, tensors: Sequence[Any]) -> Operation:
        start, wait_all, in_place = (
            self._comm.Iallreduce,
            self._mpi.Request.Waitall,
            self._mpi.IN_PLACE,
        )

        def run() -> None:
            wait_all([start(in_place, tensor) for tensor in tensors])

        return run

    def exchange(self, collective: str, tensor: Any, *, is_output_new: bool) -> Operation:
        comm = self._comm
        if collective == "broadcast":
            return partial(_returning, tensor, comm.Bcast, tensor, 0)
        run = {
            "allgather": comm.Allgather,
            "reducescatter": comm.Reduce_scatter_block,
            "alltoall": comm.Alltoall,
        }[collective]
        count = _output_count(collective, tensor.size, self.size)
        make_output = partial(np.empty, count, np.float32)
        return _writing(lambda output: run(tensor, output), make_output, is_output_new)

    def barrier(self) -> None:
        self._comm.Barrier()


class Wire:
    """No library: one TCP connection to the same local rank of the other of two hosts.

    It carries, both ways at once, the bytes that a sum over two hosts needs at least: this rank's
    share of the tensors. Nothing is summed. Ranks find each other through a file.
    """

    _AT_ONCE_BYTES = 64 * 1024  # always fits into the socket's buffer

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
        local_rank = self.rank % (self.size // 2)
        path = Path(f"{os.environ['BENCH_STORE']}.{local_rank}")
        is_listener = self.rank == local_rank
        self._socket = _accept(path) if is_listener else _connect(path)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sender = ThreadPoolExecutor(1)

    def tensor(self, count: int) -> Any:
        return np.full(count, 0, dtype=np.float32)

    def blocking(self, tensor: Any) -> Operation:
        return self.many([tensor])

    def many(self, tensors: Sequence[Any]) -> Operation:
        share = sum(tensor.nbytes for tensor in tensors) // (self.size // 2)
        return partial(self._exchange, bytearray(share), bytearray(share))

    def barrier(self) -> None:
        self._exchange(bytearray(1), bytearray(1))

    def _exchange(self, sent: bytearray, received: bytearray) -> None:
        if len(sent) <= self._AT_ONCE_BYTES:
            self._socket.sendall(sent)
            self._socket.recv_into(received, len(received), socket.MSG_WAITALL)
            return
        sending = self._sender.submit(self._socket.sendall, sent)
        self._socket.recv_into(received, len(received), socket.MSG_WAITALL)
        sending.result()


def _accept(path: Path) -> socket.socket:
    with socket.create_server((os.environ["BENCH_ADDRESS"], 0)) as listener:
        host, port = listener.getsockname()
        publish(path, f"{host} {port}")
        return listener.accept()[0]


def _connect(path: Path) -> socket.socket:
    host, port = read_published(path).split()
    return socket.create_connection((host, int(port)))


def _output_count(collective: str, count: int, size: int) -> int:
    """Elements of one rank's result, with ``count`` elements of input on each of ``size`` ranks."""
    return {"allgather": count * size, "reducescatter": count // size, "alltoall": count}[
        collective
    ]


def _returning(result: Any, run: Callable[..., Any], *arguments: Any) -> Any:
    run(*arguments)
    return result


def _writing(
    run: Callable[[Any], Any], make_output: Callable[[], Any], is_output_new: bool
) -> Operation:
    """A call of ``run`` on an output, which it returns."""
    if not is_output_new:
        output = make_output()
        return partial(_returning, output, run, output)

    def run_on_new_output() -> Any:
        output = make_output()
        run(output)
        return output

    return run_on_new_output


def _imported(module: str, name: str) -> Callable[[], Any]:
    return lambda: getattr(importlib.import_module(module), name)()


CONTESTANTS: dict[str, Callable[[], Any]] = {
    "horovod": Horovod,
    "horovod keeping memory": KeepingMemory,
    "arena floor": ArenaFloor,
    "waiting floor": WaitingFloor,
    "gloo": Gloo,
    "alone": Alone,
    "mpi": Mpi,
    "wire": Wire,
    "ddp on horovod": _imported("ddp_contestants", "OnHorovod"),
    "ddp with views": _imported("ddp_contestants", "WithViews"),
    "ddp on gloo": _imported("ddp_contestants", "OnGloo"),
    "ddp alone": _imported("ddp_contestants", "Alone"),
    "ddp without communication": _imported("ddp_contestants", "DdpAlone"),
    "nothing on gpu": _imported("gpu_contestants", "Nothing"),
    "horovod through the host": _imported("gpu_contestants", "ThroughHost"),
    "horovod over nccl": _imported("gpu_contestants", "OverNccl"),
    "nccl": _imported("gpu_contestants", "TorchOnNccl"),
    "horovod over nccl for torch": _imported("gpu_contestants", "TorchOnHorovod"),
    "sharded": _imported("sharded_contestants", "Sharded"),
    "zero on gloo": _imported("sharded_contestants", "Zero"),
    "horovod on jax": _imported("jax_contestants", "HorovodOnJax"),
    "jax.distributed": _imported("jax_contestants", "JaxDistributed"),
    "mpi4jax": _imported("jax_contestants", "MpiOnJax"),
    "alone on jax": _imported("jax_contestants", "AloneOnJax"),
    "horovod on tensorflow": _imported("tensorflow_contestants", "HorovodOnTensorFlow"),
    "horovod on xla": _imported("tensorflow_contestants", "HorovodOnXla"),
    "multi-worker strategy": _imported("tensorflow_contestants", "MultiWorkerStrategy"),
    "alone on tensorflow": _imported("tensorflow_contestants", "AloneOnTensorFlow"),
    "alone on xla": _imported("tensorflow_contestants", "AloneOnXla"),
    "none": lambda: None,
}
