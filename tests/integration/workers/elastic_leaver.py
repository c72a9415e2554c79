"""Elastic training; the last rank leaves for good after a step, so no new world is possible.

elastic_leaver.py WAY: ``ends`` leaves with exit code 0, ``dies`` by a signal.
"""

from __future__ import annotations

import os
import signal
import sys

import torch

import horovod.torch as hvd


def leave(way: str) -> None:
    if way == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(0)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, way: str) -> None:
    while True:
        hvd.allreduce(torch.ones(4), name="gradient")
        state.step += 1
        state.commit()
        if state.step == 3 and hvd.rank() == hvd.size() - 1:
            leave(way)


hvd.init()
train(hvd.elastic.TorchState(step=0), sys.argv[1])
