"""TensorFlow's contestants: the same methods with Horovod, TensorFlow's own strategy, or nothing.

Runs in the worker processes, with one compute thread per rank.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contestants import Gloo, Operation
from rendezvous_files import free_address, publish, read_published

__all__ = [
    "AloneOnTensorFlow",
    "AloneOnXla",
    "HorovodOnTensorFlow",
    "HorovodOnXla",
    "MultiWorkerStrategy",
]


def _import_tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


class _OnTensorFlow:
    tf: Any
    jit_compile: bool | None = None

    def function(self, body: Operation) -> Operation:
        """``body`` as a compiled graph."""
        return self.tf.function(body, jit_compile=self.jit_compile)  # type: ignore[no-any-return]


class HorovodOnTensorFlow(_OnTensorFlow):
    """Ours, as a script uses it."""

    def __init__(self) -> None:
        self.tf = _import_tensorflow()
        import horovod.numpy
        import horovod.tensorflow as hvd

        hvd.init()
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.barrier = horovod.numpy.barrier  # the same world; TensorFlow's interface has none

    def sums(self, tensors: Sequence[Any]) -> list[Any]:
        """The sum over ranks of each tensor, one operation each; inside a ``function``."""
        hvd = self._hvd
        return [
            hvd.allreduce(tensor, op=hvd.Sum, name=f"sum.{index}")
            for index, tensor in enumerate(tensors)
        ]

    def gradients(self, tape: Any, loss: Any, variables: Sequence[Any]) -> list[Any]:
        """The mean over ranks of the gradients; inside a ``function``."""
        return list(self._hvd.DistributedGradientTape(tape).gradient(loss, variables))


class HorovodOnXla(HorovodOnTensorFlow):
    """Ours in functions that XLA compiles whole."""

    jit_compile = True

    def __init__(self) -> None:
        os.environ["HOROVOD_ENABLE_XLA_OPS"] = "1"
        super().__init__()


class AloneOnTensorFlow(_OnTensorFlow, Gloo):
    """No communication: ranks compute by themselves, and start each loop together."""

    def __init__(self) -> None:
        super().__init__()
        self.tf = _import_tensorflow()

    def sums(self, tensors: Sequence[Any]) -> list[Any]:
        return [tensor + tensor for tensor in tensors]

    def gradients(self, tape: Any, loss: Any, variables: Sequence[Any]) -> list[Any]:
        return list(tape.gradient(loss, variables))


class AloneOnXla(AloneOnTensorFlow):
    """The same in functions that XLA compiles whole."""

    jit_compile = True


class MultiWorkerStrategy:
    """``tf.distribute.MultiWorkerMirroredStrategy``; ranks publish their ports in files."""

    def __init__(self) -> None:
        self.tf = _import_tensorflow()
        self.rank, self.size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
        store = os.environ["BENCH_STORE"]
        publish(Path(f"{store}.{self.rank}"), free_address())
        workers = [read_published(Path(f"{store}.{rank}")) for rank in range(self.size)]
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
