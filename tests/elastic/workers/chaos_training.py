"""Elastic training that records all its events, so the content of the weights can be checked.

chaos_training.py FOLDER: its history goes to FOLDER/history, faults wait in FOLDER/traps. It ends
with the epoch after FOLDER/stop exists, and pauses while FOLDER/hold exists.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import histories
import psutil
import small_task
import torch
import traps

import horovod.torch as hvd
from horovod.torch.elastic.state import (
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)


class Diary:
    """Records the events of a state, and triggers traps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._history = histories.History(folder / "history", os.environ["HOROVOD_HOSTNAME"])
        self._worlds_led = 0
        self._world = ""

    def leave_world(self) -> None:
        self._world = ""

    def enter(self) -> None:
        """Agree on a name for the world, unless that is done."""
        if self._world:
            return
        if hvd.rank() == 0:
            self._worlds_led += 1
            self._world = f"{self._history.process}-{self._worlds_led}"
            self._add_enter()
        self._world = hvd.broadcast_object(self._world, root_rank=0, name="chaos.world")
        if hvd.rank() != 0:
            self._add_enter()
        self.pass_point("enter")

    def add(self, kind: str, **facts: Any) -> None:
        """Add an event of this world, if there is one."""
        place = {"rank": hvd.rank(), "size": hvd.size()} if self._world else {}
        self._history.add(kind, world=self._world, **place, **facts)

    def pass_point(self, point: str) -> None:
        rank = hvd.rank() if hvd.is_initialized() else -1
        traps.spring(self._folder / "traps", point, rank, self._world, self._history)

    def start(self, state: RecordedState) -> None:
        """Record resources, which must be the same in each world of this size."""
        me = psutil.Process()
        self.add(
            "start",
            **state.summary(),
            descriptors=descriptors(),
            threads=me.num_threads(),
            resident_bytes=me.memory_info().rss,
        )

    def wait_while_held(self) -> None:
        while (self._folder / "hold").exists():
            time.sleep(0.05)

    def is_over(self) -> bool:
        """Agreed by all ranks."""
        is_over = (self._folder / "stop").exists()
        return hvd.broadcast_object(is_over, root_rank=0, name="chaos.over")

    def _add_enter(self) -> None:
        self.add("enter", hostname=os.environ["HOROVOD_HOSTNAME"], pid=os.getpid())


def descriptors() -> list[str]:
    """What the open ones lead to, without the numbers of sockets and other nameless ones.

    Not those of recordings: a thread opens some for the moment in which it writes one.
    """
    recordings = os.environ["HOROVOD_RECORDER_DIR"]
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            target = os.readlink(f"/proc/self/fd/{number}")
            if not target.startswith(recordings):
                found.append(target.partition(":[")[0])
    return sorted(found)


class Middle:
    """A value of a state that is synchronised between two others."""


class MiddleHandler(StateHandler):
    """It saves nothing."""

    def save(self) -> None:
        pass

    def restore(self) -> None:
        pass

    def sync(self) -> None:
        diary.pass_point("middle")


class RecordedState(hvd.elastic.TorchState):
    """Records saves, restores and syncs."""

    def summary(self) -> dict[str, Any]:
        progress = (self.step, self.epoch, self.sampler.epoch, self.sampler.processed_num)
        digest = small_task.digest(self.model, self.optimizer, *progress)
        return {"step": self.step, "epoch": self.epoch, "digest": digest}

    def save(self, path: str | None = None) -> None:
        super().save(path)
        diary.add("save", **self.summary())
        diary.pass_point("save")

    def restore(self) -> None:
        super().restore()
        diary.add("restore", **self.summary())
        diary.pass_point("restore")

    def reset(self) -> None:
        super().reset()
        diary.leave_world()

    def sync(self) -> None:
        diary.enter()
        super().sync()
        diary.add("sync", **self.summary())
        diary.pass_point("sync")


@hvd.elastic.run
def train(state: RecordedState) -> None:
    diary.enter()
    diary.start(state)
    while True:
        for samples in batches(state.sampler):
            learn(state, samples)
            if state.step % small_task.COMMIT_EVERY == 0:
                state.commit()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.commit()
        if diary.is_over():
            break
    diary.add("end", **state.summary(), weights=small_task.weights(state.model))


def batches(sampler: hvd.elastic.ElasticSampler) -> Iterator[list[int]]:
    indices = list(sampler)
    for start in range(0, len(indices), small_task.BATCH_SIZE):
        yield indices[start : start + small_task.BATCH_SIZE]


def learn(state: RecordedState, samples: list[int]) -> None:
    diary.wait_while_held()
    time.sleep(small_task.LOADING_S)
    diary.add("begin", step=state.step + 1, epoch=state.epoch, samples=samples)
    diary.pass_point("batch")
    state.optimizer.zero_grad()
    loss = small_task.loss_of(state.model, samples)
    loss.backward()
    state.optimizer.step()
    state.step += 1
    state.sampler.record_batch(0, len(samples))
    diary.add("batch", step=state.step, epoch=state.epoch, loss=loss.item())


torch.set_num_threads(1)
small_task.leave_the_compiler_out()
set_handler_registry([*get_handler_registry(), (Middle, MiddleHandler)])
hvd.init()
diary = Diary(Path(sys.argv[1]))
model = small_task.make_model()
optimizer = hvd.DistributedOptimizer(
    small_task.make_optimizer(model), named_parameters=model.named_parameters()
)
sampler = hvd.elastic.ElasticSampler(range(small_task.SAMPLE_COUNT), seed=3)
train(RecordedState(model, optimizer, middle=Middle(), sampler=sampler, epoch=0, step=0))
