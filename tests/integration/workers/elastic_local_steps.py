"""Trains with DiLoCo in an elastic job: the last rank kills itself once, and another one joins.

elastic_local_steps.py FOLDER. Each call of the training function prints what the rank starts from.
Training goes on until the new rank has joined and made some steps.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import horovod.torch as hvd

KILLED = Path(sys.argv[1]) / "killed"
LAST_STEP = 16

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
hvd.init()
torch.set_num_threads(1)
torch.manual_seed(hvd.rank())
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = hvd.DiLoCo(
    torch.optim.Adam(model.parameters(), 0.01), sync_every=4, fragments=2, overlap=2
)
is_new = True


def digest(tensors: object) -> float:
    return sum(tensor.detach().double().sum().item() for tensor in tensors)


def say_start(state: hvd.elastic.TorchState) -> None:
    global is_new
    found = optimizer.state_dict()
    agreed, inner = found["local_steps"]["agreed"], found["state"]
    is_agreed = bool(agreed) and all(map(torch.equal, agreed, model.parameters()))
    print(
        f"start: new {is_new}, step {optimizer.local_step}, size {hvd.size()}, inner state of "
        f"{len(inner)}, agreed {is_agreed}, sum of agreed {digest(agreed)}",
        flush=True,
    )
    is_new = False


def may_end(state: hvd.elastic.TorchState) -> bool:
    has_joined = KILLED.exists() and hvd.size() == 3
    everywhere = hvd.allreduce(torch.tensor(float(has_joined)), op=hvd.Min, name="joined")
    return bool(everywhere) and state.step >= LAST_STEP


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    say_start(state)
    while not may_end(state):
        generator = torch.Generator().manual_seed(100 * state.step + hvd.rank())
        optimizer.zero_grad()
        model(torch.randn(8, 6, generator=generator)).square().mean().backward()
        if state.step == 11 and hvd.rank() == hvd.size() - 1 and not KILLED.exists():
            KILLED.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        state.step += 1
        state.commit()
        time.sleep(0.005)  # leaves the cores to the worker that starts
    optimizer.finish()


train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))
print(f"end: size {hvd.size()}, sum of parameters {digest(model.parameters())}", flush=True)
