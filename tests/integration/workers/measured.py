"""Sums in a second world; rank 0 prints its endpoint's answer once that includes rank 1."""

import os
import time
import urllib.request

import numpy as np

import horovod.numpy as hvd

hvd.init()
hvd.shutdown()
hvd.init()
hvd.allreduce(np.ones(100, np.float32), name="x")
if hvd.rank() == 0:
    address = f"http://127.0.0.1:{os.environ['HOROVOD_METRICS_PORT']}/metrics"
    wanted = 'horovod_bytes_total{kind="allreduce",rank="1"} 400.0'
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with urllib.request.urlopen(address, timeout=10) as answer:
            text = answer.read().decode()
        if wanted in text:
            break
        time.sleep(0.1)
    print(text)
hvd.barrier()
