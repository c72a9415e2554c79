"""Much work, checked. load.py many|small|large|empty"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import horovod.numpy as hvd


def many() -> None:
    """Different operations, in a different order on every rank."""
    order = np.random.default_rng(hvd.rank()).permutation(300)
    for _ in range(2):
        reduced, gathered, sent = {}, {}, {}
        for index in order:
            mine = np.full(index + 1, hvd.rank() + index, np.int64)
            reduced[index] = hvd.allreduce_async(mine, name=f"r{index}", op=hvd.Sum)
            gathered[index] = hvd.allgather_async(mine[: hvd.rank()], name=f"g{index}")
            sent[index] = hvd.broadcast_async(mine, index % hvd.size(), name=f"b{index}")
        ranks = np.arange(hvd.size())
        for index in range(300):
            assert (hvd.synchronize(reduced[index]) == (ranks + index).sum()).all()
            assert (hvd.synchronize(sent[index]) == index % hvd.size() + index).all()
            sizes = np.minimum(ranks, index + 1)
            assert (hvd.synchronize(gathered[index]) == np.repeat(ranks + index, sizes)).all()


def small() -> None:
    handles = [
        hvd.allreduce_async(np.full(16, index, np.float32), name=f"small{index}")
        for index in range(10_000)
    ]
    for index, handle in enumerate(handles):
        assert (hvd.synchronize(handle) == index).all()


def large() -> None:
    """A gigabyte in place, with almost no additional memory."""
    tensor = np.full(1 << 28, hvd.rank() + 1, np.float32)
    before = peak_bytes()
    hvd.allreduce_(tensor, op=hvd.Sum)
    used = peak_bytes() - before
    assert used < 64 << 20, f"{used} bytes more at the peak"
    expected = np.float32(sum(range(1, hvd.size() + 1)))
    assert tensor.min() == expected == tensor.max()


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def empty() -> None:
    shape = (0, 3)
    assert hvd.allreduce(np.ones(shape)).shape == shape
    assert hvd.broadcast(np.ones(shape), 0).shape == shape
    assert hvd.allgather(np.ones(shape)).shape == shape
    handles = [hvd.allreduce_async(np.ones(index % 2), name=f"z{index}") for index in range(100)]
    assert [hvd.synchronize(handle).size for handle in handles] == [0, 1] * 50


if __name__ == "__main__":
    hvd.init()
    {"many": many, "small": small, "large": large, "empty": empty}[sys.argv[1]]()
    hvd.shutdown()
