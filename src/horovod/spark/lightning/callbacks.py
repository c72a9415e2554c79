"""Callbacks for Lightning: history, upload of files, and the end at a loss that is no number."""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

import horovod.torch as hvd
from horovod.spark.common.plan import Plan


class History(Callback):
    """The logged values of each epoch, as means over the ranks."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.rows: list[dict[str, Any]] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the epoch, after its validation."""
        mine = {name: float(value) for name, value in trainer.callback_metrics.items()}
        found = hvd.allgather_object(mine, name="estimator.metrics")
        means = {name: sum(other[name] for other in found) / len(found) for name in mine}
        row: dict[str, Any] = {"epoch": trainer.current_epoch, "train": {}}
        for name, value in means.items():
            what = "validation" if name.startswith("val") else "train"
            row.setdefault(what, {})[name] = value
        self.rows.append(row)
        if self._plan.params["verbose"] and hvd.rank() == 0:
            numbers = "  ".join(f"{name} {value:.4f}" for name, value in means.items())
            print(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  {numbers}", flush=True)


class EndOnNan(Callback):
    """Ends the training with ValueError."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Check the loss."""
        loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
        if loss is not None and not math.isfinite(float(loss)):
            raise ValueError(f"the loss of step {trainer.global_step} is {float(loss)}")


class Upload(Callback):
    """Uploads checkpoints and logs into the store, and deletes those that Lightning deletes."""

    def __init__(self, plan: Plan, folder: str) -> None:
        self._remote = plan.remote
        self._folder = folder
        self._sent: set[str] = set()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Upload the files of the epoch before."""
        self._send()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Upload the files of the last epoch."""
        self._send()

    def _send(self) -> None:
        if hvd.rank() != 0:
            return
        store, found = self._remote.store, set()
        for parent, _, names in os.walk(self._folder):
            for path in (os.path.join(parent, name) for name in names):
                found.add(path)
                # A checkpoint does not change, a log does.
                if path not in self._sent or not path.endswith(".ckpt"):
                    with open(path, "rb") as file:
                        store.write(self._target(path), file.read())
        for path in self._sent - found:
            store.fs.rm(self._target(path))
        self._sent = found

    def _target(self, path: str) -> str:
        inside = os.path.relpath(path, self._folder).replace(os.sep, posixpath.sep)
        return f"{self._remote.run_path}/{inside}"
