"""A worker of ``local_steps_killed.py``: DiLoCo in an elastic job.

    local_steps_worker.py FOLDER STEPS SYNC_EVERY KILLED_AFTER

The last rank kills itself after step KILLED_AFTER, once (0: never). FOLDER/steps.PID has a line for
each step: time, step, ranks. FOLDER/loss has the validation loss in the end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from characters import Text, loss_of
from local_steps_loop import LR, ROWS, STREAMING, learning_rate, make_training

import horovod.torch as hvd

_FOLDER = Path(sys.argv[1])
_STEPS, _SYNC_EVERY, _KILLED_AFTER = map(int, sys.argv[2:])
_STEPS_OF_A_COMMIT = 8


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)
    text = Text()
    model, optimizer = make_training(text, STREAMING, _SYNC_EVERY)
    factor_of = learning_rate(_STEPS)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState, log: object) -> None:
        while state.step < _STEPS:
            for group in optimizer.param_groups:
                group["lr"] = LR * factor_of(state.step)
            samples = torch.Generator().manual_seed(1000 * state.step + hvd.rank())
            optimizer.zero_grad()
            loss_of(model, text.batch(ROWS, samples)).backward()
            optimizer.step()
            state.step += 1
            print(time.time(), state.step, hvd.size(), file=log, flush=True)
            if state.step % _STEPS_OF_A_COMMIT == 0:
                state.commit()
            _die_if_due(state.step)
        optimizer.finish()

    with (_FOLDER / f"steps.{os.uname().nodename}.{os.getpid()}").open("w") as log:
        train(state, log)
    if hvd.rank() == 0:
        (_FOLDER / "loss").write_text(str(text.validation_loss(model)))


def _die_if_due(step: int) -> None:
    mark = _FOLDER / "killed"
    if step == _KILLED_AFTER and hvd.rank() == hvd.size() - 1 and not mark.exists():
        mark.write_text(f"{os.uname().nodename}.{os.getpid()}")
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
