"""JAX's contestants: a compiled training step over Horovod, JAX's own collectives, or none.

Runs in the worker processes, with one compute thread per rank.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contestants import Gloo

__all__ = ["AloneOnJax", "HorovodOnJax", "JaxDistributed"]

_MEET_TIMEOUT_S = 60


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
