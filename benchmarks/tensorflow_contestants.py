"""TensorFlow's contestants: the same few methods over Horovod, TensorFlow's own strategy, or none.

Runs in the worker processes, with one compute thread per rank.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from contestants import Gloo

__all__ = [
    "AloneOnTensorFlow",
    "AloneOnXla",
    "HorovodOnTensorFlow",
    "HorovodOnXla",
    "MultiWorkerStrategy",
]

Operation = Callable[[], Any]

_MEET_TIMEOUT_S = 60


def _import_tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


class HorovodOnTensorFlow:
    """Ours, as a script uses it."""

    def __init__(self) -> None:
        self.tf = _import_tensorflow()
        import horovod.numpy
        import horovod.tensorflow as hvd

        hvd.init()
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.barrier = horovod.numpy.barrier  # the same world; TensorFlow's interface has none

    def function(self, body: Operation) -> Operation:
        """``body`` as a compiled graph."""
        return self.tf.function(body)  # type: ignore[no-any-return]

    def sums(self, tensors: Sequence[Any]) -> list[Any]:
        """The sum over ranks of each tensor, as so many operations; inside of a ``function``."""
        hvd = self._hvd
        return [
            hvd.allreduce(tensor, op=hvd.Sum, name=f"sum.{index}")
            for index, tensor in enumerate(tensors)
        ]

    def gradients(self, tape: Any, loss: Any, variables: Sequence[Any]) -> list[Any]:
        """The mean over ranks of the gradients; inside of a ``function``."""
        return list(self._hvd.DistributedGradientTape(tape).gradient(loss, variables))


class HorovodOnXla(HorovodOnTensorFlow):
    """Ours in functions that XLA compiles whole."""

    def __init__(self) -> None:
        os.environ["HOROVOD_ENABLE_XLA_OPS"] = "1"
        super().__init__()

    def function(self, body: Operation) -> Operation:
        return self.tf.function(body, jit_compile=True)  # type: ignore[no-any-return]


class AloneOnTensorFlow(Gloo):
    """No communication: ranks compute by themselves, and start each loop together."""

    def __init__(self) -> None:
        super().__init__()
        self.tf = _import_tensorflow()

    def function(self, body: Operation) -> Operation:
        return self.tf.function(body)  # type: ignore[no-any-return]

    def sums(self, tensors: Sequence[Any]) -> list[Any]:
        return [tensor + tensor for tensor in tensors]

    def gradients(self, tape: Any, loss: Any, variables: Sequence[Any]) -> list[Any]:
        return list(tape.gradient(loss, variables))


class AloneOnXla(AloneOnTensorFlow):
    """The same in functions that XLA compiles whole."""

    def function(self, body: Operation) -> Operation:
        return self.tf.function(body, jit_compile=True)  # type: ignore[no-any-return]


class MultiWorkerStrategy:
    """``tf.distribute.MultiWorkerMirroredStrategy``; ranks tell their ports by files."""

    def __init__(self) -> None:
        self.tf = _import_tensorflow()
        self.rank, self.size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
        workers = _addresses(Path(os.environ["BENCH_STORE"]), self.rank, self.size)
        task = {"type": "worker", "index": self.rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        self._strategy = self.tf.distribute.MultiWorkerMirroredStrategy()
        one = self.tf.ones([])
        self.barrier = self.function(lambda: self.sums([one]))

    def function(self, body: Operation) -> Operation:
        return self.tf.function(lambda: self._strategy.run(body))  # type: ignore[no-any-return]

    def sums(self, tensors: Sequence[Any]) -> list[Any]:
        context = self.tf.distribute.get_replica_context()
        return [context.all_reduce(self.tf.distribute.ReduceOp.SUM, each) for each in tensors]

    def gradients(self, tape: Any, loss: Any, variables: Sequence[Any]) -> list[Any]:
        context = self.tf.distribute.get_replica_context()
        gradients = tape.gradient(loss, variables)
        return list(context.all_reduce(self.tf.distribute.ReduceOp.MEAN, gradients))


def _addresses(store: Path, rank: int, size: int) -> list[str]:
    """Every rank's address, its own on a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    files = [store.with_suffix(f".{each}") for each in range(size)]
    unfinished = store.with_suffix(f".new{rank}")
    unfinished.write_text(address)
    unfinished.rename(files[rank])
    deadline = time.monotonic() + _MEET_TIMEOUT_S
    while not all(file.exists() for file in files):
        if time.monotonic() > deadline:
            raise RuntimeError("the other ranks did not come")
        time.sleep(0.05)
    return [file.read_text() for file in files]
