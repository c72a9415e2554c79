"""JAX's contestants: a compiled training step over Horovod, a peer of it, or nothing.

Runs in the worker processes, with one compute thread per rank.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contestants import Gloo, Mpi

__all__ = ["AloneOnJax", "HorovodOnJax", "JaxDistributed", "MpiOnJax"]

_MEET_TIMEOUT_S = 60
_MANY_TENSORS = 64


def _import_jax() -> Any:
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["NPROC"] = "1"  # the size of XLA's thread pools
    import jax

    return jax


class _OnJax:
    jax: Any

    def optimizer(self, transformation: Any) -> Any:
        """What makes updates of this rank's gradients."""
        return transformation

    def replicated(self, tree: Any) -> Any:
        """Parameters, equal on all ranks."""
        return self.jax.tree_util.tree_map(self.jax.numpy.asarray, tree)

    def shared(self, array: Any) -> Any:
        """This rank's part of the batch."""
        return self.jax.numpy.asarray(array)


class HorovodOnJax(_OnJax):
    """Ours, as a script uses it."""

    def __init__(self) -> None:
        self.jax = _import_jax()
        import horovod.jax as hvd

        hvd.init()
        self.rank, self.size, self.barrier = hvd.rank(), hvd.size(), hvd.barrier
        self.optimizer = hvd.DistributedOptimizer


class AloneOnJax(_OnJax, Gloo):
    """No communication: ranks compute by themselves, and start each loop together."""

    def __init__(self) -> None:
        super().__init__()
        self.jax = _import_jax()


class JaxDistributed(_OnJax):
    """One program over the processes' devices, whose gradients XLA sums through Gloo."""

    def __init__(self) -> None:
        self.jax = _import_jax()
        self.rank, self.size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
        self.jax.config.update("jax_cpu_collectives_implementation", "gloo")
        address = _address(Path(os.environ["BENCH_STORE"]), self.rank)
        self.jax.distributed.initialize(address, self.size, self.rank)
        from jax.experimental import multihost_utils
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(self.jax.devices(), "ranks")
        self._whole = NamedSharding(mesh, PartitionSpec())
        self._parts = NamedSharding(mesh, PartitionSpec("ranks"))
        self.barrier: Callable[[], None] = lambda: multihost_utils.sync_global_devices("barrier")

    def replicated(self, tree: Any) -> Any:
        make = self.jax.make_array_from_process_local_data
        return self.jax.tree_util.tree_map(lambda leaf: make(self._whole, leaf), tree)

    def shared(self, array: Any) -> Any:
        return self.jax.make_array_from_process_local_data(self._parts, array)


class MpiOnJax(_OnJax, Mpi):
    """mpi4jax: MPI's allreduce as a call in the program, the next one after the one before.

    Gradients go as is quickest: many as one array, a few each by itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.jax = _import_jax()
        import mpi4jax
        from mpi4py import MPI

        self._sum: Callable[[Any], Any] = lambda array: mpi4jax.allreduce(array, op=MPI.SUM)

    def optimizer(self, transformation: Any) -> Any:
        def update(gradients: Any, state: Any, params: Any = None) -> Any:
            return transformation.update(self._mean(gradients), state, params)

        return type(transformation)(transformation.init, update)

    def _mean(self, gradients: Any) -> Any:
        tree_map = self.jax.tree_util.tree_map
        if len(self.jax.tree_util.tree_leaves(gradients)) <= _MANY_TENSORS:
            return tree_map(lambda array: self._sum(array) / self.size, gradients)
        from jax.flatten_util import ravel_pytree

        joined, unravel = ravel_pytree(gradients)
        return unravel(self._sum(joined) / self.size)


def _address(store: Path, rank: int) -> str:
    """Where the ranks meet: rank 0 tells a port that was free a moment ago by a file."""
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        unfinished = store.with_suffix(".new")
        unfinished.write_text(address)
        unfinished.rename(store)
    deadline = time.monotonic() + _MEET_TIMEOUT_S
    while not store.exists():
        if time.monotonic() > deadline:
            raise RuntimeError("rank 0 did not come")
        time.sleep(0.05)
    return store.read_text()
