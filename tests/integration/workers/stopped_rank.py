"""The last rank stops in the middle of a collective, or submits nothing; all ranks report.

stopped_rank.py stop|silence
"""

from __future__ import annotations

import os
import signal
import sys
import time

import notes
import numpy as np
from lost_rank import error_of, is_in_the_middle, start_many

import horovod.numpy as hvd


def stop() -> dict[str, object]:
    handles = start_many()
    if hvd.rank() == hvd.size() - 1:
        notes.until(is_in_the_middle)
        notes.leave("stopped", os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)
    errors = [error_of(lambda handle=handle: hvd.synchronize(handle)) for handle in handles]
    return {"errors": errors}


def silence() -> dict[str, object]:
    began = time.monotonic()
    if hvd.rank() == hvd.size() - 1:
        notes.read_from_each("report", hvd.size() - 1)
        return {"errors": [error_of(lambda: hvd.allreduce(np.ones(4), name="other"))]}
    error = error_of(lambda: hvd.allreduce(np.ones(4), name="lonely"))
    return {"errors": [error], "seconds": time.monotonic() - began}


if __name__ == "__main__":
    hvd.init()
    hvd.barrier()
    report = {"stop": stop, "silence": silence}[sys.argv[1]]()
    notes.leave(f"report.{hvd.rank()}", report)
    # The first rank that leaves must not cause an error on another one.
    notes.read_from_each("report", hvd.size())
