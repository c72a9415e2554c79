"""A rank that notes what it has sent to other hosts for an allreduce of each size, in bytes."""

from __future__ import annotations

import sys

import notes
import numpy as np

import horovod.numpy as hvd

hvd.init()
found = []
for size_bytes in map(int, sys.argv[1:]):
    before = hvd.metrics()
    hvd.allreduce_(np.ones(size_bytes // 4, np.float32), op=hvd.Sum, name=str(size_bytes))
    after = hvd.metrics()
    found.append([after[name] - before[name] for name in ("link_bytes", "buckets")])
notes.leave(f"counted.{hvd.rank()}", found)
hvd.barrier()
hvd.shutdown()
