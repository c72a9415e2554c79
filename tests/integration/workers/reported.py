"""Sums tensors until all ranks have reported to the launcher; reported.py [kill].

With ``kill`` rank 1 kills itself then.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import horovod.numpy as hvd
from horovod.metrics import sampling

hvd.init()
assert sampling._process is not None
record = sampling._process.record
step = 0
while True:
    time.sleep(0.005)  # rows come once a second
    hvd.log_metrics({"loss": 1.5}, step, samples=8)
    step += 1
    hvd.grouped_allreduce([np.ones(50, np.float32)] * 3, name="</script><b>grad")
    # All rows but the last have been published.
    told = record._history.rows[:-1]
    has_told = np.array([any(row.values["steps"] for row in told)])
    if hvd.allreduce(has_told, op=hvd.Min, name="told")[0]:
        break
if hvd.rank() == 0:
    sampling.note_sample({"cycle_time_ms": 2.5, "cache_enabled": True}, 1.5e9, is_chosen=True)
if sys.argv[1:] == ["kill"]:
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.barrier()
