"""Counts batches until the test ends it, on ranks that join and leave.

elastic_counter.py FOLDER. Each worker appends lines to FOLDER/<worker>.txt: ``seen RANK SIZE`` at
its start, then ``batch NUMBER SIZE`` and ``reset RANK SIZE``. A worker for which there is a FIFO
FOLDER/hold waits there between ``init`` and training, and tries a collective too early, which is
``refused``. FOLDER/enough ends the training.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import horovod.numpy as hvd
from horovod.common.elastic import ObjectState, run_fn

FOLDER = Path(sys.argv[1])
WORKER = os.environ["_HOROVOD_WORKER"]
BATCH_S = 0.005  # leaves the cores to starting workers
HISTORY = (FOLDER / f"{WORKER}.txt").open("w", buffering=1)


def note(*arguments: object) -> None:
    print(*arguments, file=HISTORY)


def train(state: ObjectState) -> int:
    while True:
        time.sleep(BATCH_S)
        total = hvd.allreduce(np.ones(1), op=hvd.Sum, name="batch")
        is_enough = hvd.allreduce(np.array([(FOLDER / "enough").exists()]), op=hvd.Max, name="end")
        state.batch += 1
        note("batch", state.batch, int(total[0]))
        if is_enough[0]:
            return int(state.batch)
        state.commit()


def restart() -> None:
    hvd.shutdown()
    hvd.init()


def broadcast(value: object) -> object:
    return hvd.broadcast_object(value, root_rank=0)


hvd.init()
note("seen", hvd.rank(), hvd.size())
if (FOLDER / "hold").exists():
    (FOLDER / "hold").read_text()
    try:
        hvd.allreduce(np.ones(1), name="early")
    except ValueError:
        note("refused")
state = ObjectState(broadcast, hvd.rank, batch=0)
state.register_reset_callbacks([lambda: note("reset", hvd.rank(), hvd.size())])
print("counted", run_fn(train, restart)(state), flush=True)
