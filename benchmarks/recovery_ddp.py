"""The torchrun job of ``elastic_recovery.py``: plain DDP that continues from its checkpoint.

recovery_ddp.py FOLDER: as often as the elastic script commits, rank 0 writes weights, optimizer and
progress to a file and replaces the previous one; every start reads it. The job logs its steps to
FOLDER/history, ends when FOLDER/stop exists, and pauses while FOLDER/hold exists.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import histories
import small_task
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Training:
    """Model, optimizer and progress: epochs, batches in this epoch, and steps in all."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "checkpoint"
        self.model = DistributedDataParallel(small_task.make_model())
        self.optimizer = small_task.make_optimizer(self.model)
        self.epoch = self.batch = self.step = 0

    def load(self) -> None:
        if self._path.exists():
            saved = torch.load(self._path)
            self.model.module.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.epoch, self.batch, self.step = saved["progress"]

    def save(self) -> None:
        if dist.get_rank() != 0:
            return
        saved = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": (self.epoch, self.batch, self.step),
        }
        unfinished = self._path.with_name("checkpoint.new")
        torch.save(saved, unfinished)
        unfinished.rename(self._path)

    def learn(self, samples: list[int]) -> float:
        self.optimizer.zero_grad()
        loss = small_task.loss_of(self.model, samples)
        loss.backward()
        self.optimizer.step()
        self.batch += 1
        self.step += 1
        return loss.item()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    place = {"world": os.environ["TORCHELASTIC_RESTART_COUNT"], "rank": dist.get_rank()}
    place["size"] = dist.get_world_size()
    history = histories.History(folder / "history", "localhost")
    training = Training(folder)
    training.load()
    history.add("enter", **place, hostname="localhost", pid=os.getpid())
    while not _is_over(folder):
        for samples in _rest_of_epoch(training):
            _wait_while_held(folder)
            time.sleep(small_task.LOADING_S)
            loss = training.learn(samples)
            history.add("batch", **place, step=training.step, epoch=training.epoch, loss=loss)
            if training.step % small_task.COMMIT_EVERY == 0:
                training.save()
        training.epoch, training.batch = training.epoch + 1, 0
        training.save()
    dist.destroy_process_group()


def _rest_of_epoch(training: Training) -> list[list[int]]:
    order = list(range(small_task.SAMPLE_COUNT))
    random.Random(training.epoch).shuffle(order)
    size = dist.get_world_size()
    order += order[: -len(order) % size]
    own = order[dist.get_rank() :: size]
    length = small_task.BATCH_SIZE
    return [own[at : at + length] for at in range(training.batch * length, len(own), length)]


def _is_over(folder: Path) -> bool:
    told: list[Any] = [(folder / "stop").exists()]
    dist.broadcast_object_list(told, src=0)
    return bool(told[0])


def _wait_while_held(folder: Path) -> None:
    while (folder / "hold").exists():
        time.sleep(0.05)


main(Path(sys.argv[1]))
