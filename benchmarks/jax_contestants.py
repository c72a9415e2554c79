"""JAX's contestants: a compiled training step over Horovod, a peer of it, or nothing.

Runs in the worker processes, with one compute thread per rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contestants import Gloo, Mpi
from rendezvous_files import free_address, publish, read_published

__all__ = ["AloneOnJax", "HorovodOnJax", "JaxDistributed", "MpiOnJax"]

_MANY_TENSORS = 64


def _import_jax() -> Any:
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["NPROC"] = "1"  # the size of XLA's thread pools
    import jax

    return jax


class _OnJax:
    jax: Any

    def optimizer(self, transformation: Any) -> Any:
        """The transformation of gradients into updates."""
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
        store = Path(os.environ["BENCH_STORE"])
        if self.rank == 0:
            publish(store, free_address())
        self.jax.distributed.initialize(read_published(store), self.size, self.rank)
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
    """mpi4jax: calls of MPI's allreduce in the program, one after the other.

    Gradients use the fastest way: many are joined to one array, a few are sent separately.
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
