"""Reduces one array until autotuning has written its result; notes ``report.R``.

Argument: the log of autotuning. ``forms`` are the forms that the result had: exact, or coded.
``checksum`` is of all results. The last result is of a step after the end of the search.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import notes
import numpy as np

import horovod.numpy as hvd

hvd.init()
found = Path(sys.argv[1] + ".yaml")
mine = np.random.default_rng(hvd.rank()).standard_normal(250_000).astype(np.float32)
total = hvd.allreduce(mine.astype(np.float64), op=hvd.Sum, name="wide")
forms, checksum, errors = [], 0, []


def step() -> None:
    global checksum
    result = hvd.allreduce(mine, op=hvd.Sum, name="large")
    errors.append(float(np.abs(result - total).max()))
    form = "exact" if errors[-1] < 1e-5 else "coded"
    if forms[-1:] != [form]:
        forms.append(form)
    checksum = zlib.crc32(result.tobytes(), checksum)


is_over = False
while not is_over:
    step()
    said = np.array([hvd.rank() == 0 and found.exists()])
    is_over = bool(hvd.broadcast(said, root_rank=0)[0])
step()
notes.leave(
    f"report.{hvd.rank()}",
    {
        "forms": forms,
        "checksum": checksum,
        "is_close": max(errors) < 0.2,
    },
)
hvd.shutdown()
