"""All ranks wait, outside of any call, for the note ``go``; each reports its next calls.

Notes: ``ready.R`` (the pid), ``report.R`` at the end. All leave after the note ``leave``.
"""

from __future__ import annotations

import os

import notes
from steady import error_of

import horovod.numpy as hvd


def main() -> None:
    hvd.init()
    hvd.barrier()
    rank = hvd.rank()
    notes.leave(f"ready.{rank}", os.getpid())
    notes.read("go")
    notes.leave(f"report.{rank}", {"error": error_of(hvd.barrier), "later": error_of(hvd.barrier)})
    notes.read("leave")
    hvd.shutdown()


if __name__ == "__main__":
    main()
