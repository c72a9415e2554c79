"""The ways in which rank 1 of a job ends while rank 0 waits for it."""

import os
import signal

# The launcher sends it to rank 0 when rank 1 is gone, perhaps before rank 0 has begun to wait.
signal.signal(signal.SIGTERM, signal.SIG_IGN)


def end_rank_1(hvd, how):
    """Rank 1 is killed, leaves or waits for ever; rank 0 survives the launcher's SIGTERM."""
    if hvd.rank() != 1:
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "leaves":
        hvd.shutdown()
    signal.pause()  # until rank 0 ends the job
