"""Ranks exchange tensors full of known words with each collective and check the results.

secret_words.py WORDS
"""

from __future__ import annotations

import sys

import numpy as np

import horovod.numpy as hvd

COUNT = 20_000


def main() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    tensor = np.frombuffer(sys.argv[1].encode() * COUNT, np.uint8)
    given = tensor if rank == 0 else np.zeros_like(tensor)
    assert np.array_equal(hvd.broadcast(given, 0, name="broadcast"), tensor)
    assert np.array_equal(hvd.allreduce(tensor, op=hvd.Max, name="max"), tensor)
    assert np.array_equal(hvd.allgather(tensor, name="allgather"), np.tile(tensor, size))
    even = tensor[: len(tensor) // size * size]
    own = even.reshape(size, -1)[rank]
    received = hvd.alltoall(even, name="alltoall")
    assert np.array_equal(received, np.tile(own, size))
    scattered = hvd.reducescatter(given[: len(even)], op=hvd.Sum, name="reducescatter")
    assert np.array_equal(scattered, own)
    hvd.shutdown()


if __name__ == "__main__":
    main()
