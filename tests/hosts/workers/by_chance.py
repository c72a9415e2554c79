"""Reduces the same array twice under one name; notes ``report.R``: checksums of the results."""

from __future__ import annotations

import zlib

import notes
import numpy as np

import horovod.numpy as hvd

hvd.init()
mine = np.random.default_rng(hvd.rank()).standard_normal(10_000).astype(np.float32)
results = [hvd.allreduce(mine, name="weight") for _ in range(2)]
notes.leave(f"report.{hvd.rank()}", [zlib.crc32(result.tobytes()) for result in results])
hvd.shutdown()
