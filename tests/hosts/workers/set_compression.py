"""A script that knows nothing of compression, under HOROVOD_LINK_COMPRESSION.

Notes ``report.R``: whether a large float32 average is exact, and whether what cannot be compressed
and what is small is.
"""

from __future__ import annotations

import notes
import numpy as np

import horovod.numpy as hvd

hvd.init()
large = np.random.default_rng(hvd.rank()).standard_normal(100_000).astype(np.float32)
whole = np.arange(5000, dtype=np.int64)
small = large[:100].copy()
total = hvd.allreduce(large.astype(np.float64), op=hvd.Sum, name="wide")
found = hvd.allreduce(large, op=hvd.Sum, name="large")
notes.leave(
    f"report.{hvd.rank()}",
    {
        "is_exact": bool(np.allclose(found, total, rtol=1e-5, atol=1e-5)),
        "is_close": bool(np.abs(found - total).max() < 1.5),
        "others": bool(
            np.array_equal(hvd.allreduce(whole, op=hvd.Max, name="whole"), whole)
            and np.allclose(hvd.allreduce(small, op=hvd.Sum, name="small"), total[:100], atol=1e-5)
        ),
    },
)
hvd.shutdown()
