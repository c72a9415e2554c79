"""Gloo, as it is inside PyTorch, as a data plane: one process group for each process set.

The members find each other through the job's store, which authenticates them. Gloo makes its own
connections, which it does not protect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

from numpy.typing import NDArray

from horovod.backends.protocol import Backend, Bytes, Group, GroupStore, Request
from horovod.errors import InitError


class _Request:
    """Several works, which Gloo runs in order on copies of the tensors.

    After a failure Gloo's threads may go on for a while, when the program's tensors are freed. So
    they work on copies, and ``copy_back`` copies the results.
    """

    def __init__(self, works: Sequence[Any], copy_back: Callable[[], Any]) -> None:
        self._works = works
        self._copy_back = copy_back

    def is_over(self) -> bool:
        """Whether all works have succeeded or failed."""
        return all(work.is_completed() for work in self._works)

    def test(self) -> bool:
        if not self.is_over():
            return False
        for work in self._works:
            work.wait()  # raises the error of the work
        self._copy_back()
        return True


class GlooBackend(Backend):
    """The collectives of one ``ProcessGroupGloo``."""

    dtypes = frozenset({"uint8", "int8", "int32", "int64", "float32", "float64"})

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        import torch
        import torch.distributed

        self._torch = torch
        self._distributed: Any = torch.distributed
        self._plane = _connect(self._distributed, group)
        self._last: _Request | None = None

    @classmethod
    def why_unavailable(cls) -> str | None:
        if find_spec("torch") is None:
            return "Gloo comes with PyTorch, which is not installed; pip install torch"
        import torch.distributed as distributed

        if not distributed.is_available() or not distributed.is_gloo_available():
            return "this build of PyTorch has no Gloo"
        return None

    def allreduce(self, array: NDArray[Any], reduction: str) -> Request:
        tensor = self._copy(array)
        options = self._distributed.AllreduceOptions()
        options.reduceOp = getattr(self._distributed.ReduceOp, reduction.upper())
        return self._request([self._plane.allreduce([tensor], options)], tensor, array)

    def broadcast(self, array: Bytes, root: int) -> Request:
        tensor = self._copy(array)
        return self._request([self._broadcast(tensor, root)], tensor, array)

    def allgather(self, given: Bytes, taken: Bytes, sizes: Sequence[int]) -> Request:
        """Gloo gathers equal sizes only, so each member's part is a broadcast."""
        tensor: Any = self._torch.empty(len(taken), dtype=self._torch.uint8, device="cpu")
        parts = tensor.split(list(sizes))
        parts[self.group.rank].copy_(self._torch.from_numpy(given))
        works = [self._broadcast(part, root) for root, part in enumerate(parts) if len(part)]
        return self._request(works, tensor, taken)

    def alltoall(
        self, given: Bytes, given_sizes: Sequence[int], taken: Bytes, taken_sizes: Sequence[int]
    ) -> Request:
        tensor: Any = self._torch.empty(len(taken), dtype=self._torch.uint8, device="cpu")
        sizes = (list(taken_sizes), list(given_sizes))
        work = self._plane.alltoall_base(tensor, self._copy(given), *sizes)
        return self._request([work], tensor, taken)

    def barrier(self) -> Request:
        self._last = _Request([self._plane.barrier()], lambda: None)
        return self._last

    def close(self) -> None:
        """Disconnect, unless a collective is unfinished after a failure: Gloo would wait for it."""
        if self._last is None or self._last.is_over():
            self._plane = self._last = None  # works hold connections too

    def _copy(self, array: NDArray[Any]) -> Any:
        return self._torch.from_numpy(array).clone()

    def _request(self, works: Sequence[Any], result: Any, array: NDArray[Any]) -> Request:
        self._last = _Request(works, lambda: self._torch.from_numpy(array).copy_(result))
        return self._last

    def _broadcast(self, tensor: Any, root: int) -> Any:
        options = self._distributed.BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        return self._plane.broadcast([tensor], options)


def _connect(distributed: Any, group: Group) -> Any:
    gloo = distributed.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=group.address)]
    options._timeout = timedelta(seconds=group.timeout_s)
    options._threads = 1  # one collective at a time, its parts in order
    store = _store_class(distributed)(group.store, group.timeout_s)
    try:
        return gloo(store, group.rank, group.size, options)
    except RuntimeError as error:
        raise InitError(
            f"init: Gloo cannot connect the ranks {list(group.ranks)}: {error}"
        ) from None


def _store_class(distributed: Any) -> Any:
    """torch's store class over our store; made here, since torch may be absent."""

    class TorchView(distributed.Store):  # type: ignore[misc]
        def __init__(self, store: GroupStore, timeout_s: float) -> None:
            super().__init__()
            self._store = store
            self._deadline = time.monotonic() + timeout_s

        def set(self, key: str, value: bytes) -> None:
            self._store.set(key, value)

        def get(self, key: str) -> bytes:
            return self._store.get(key, max(0.0, self._deadline - time.monotonic()))

        def wait(self, keys: Sequence[str], timeout: Any = None) -> None:
            for key in keys:
                self.get(key)

    return TorchView
