"""A callback that gives ``hvd.metrics()`` to the Trainer's loggers."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
from horovod.lightning.library import Callback
from horovod.trackers import flat

__all__ = ["MetricsLogger"]


class MetricsLogger(Callback):
    """Logs ``hvd.metrics()`` of rank 0 with the Trainer's own loggers.

        Trainer(logger=TensorBoardLogger("logs"), callbacks=[MetricsLogger(every=100)])

    Args:
        every: steps of the optimizer between two logs.
        prefix: in front of each name.
    """

    def __init__(self, every: int = 50, prefix: str = "horovod/") -> None:
        if every < 1:
            raise ValueError(f"every={every}: at least 1")
        self._every = every
        self._prefix = prefix
        self._logged = 0

    def on_train_batch_end(self, trainer: Any, *batch: Any) -> None:
        """Log, if it is time."""
        step = trainer.global_step
        if step % self._every == 0 and step != self._logged:
            self._log(trainer, step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the last numbers."""
        if trainer.global_step != self._logged:
            self._log(trainer, trainer.global_step)

    def _log(self, trainer: Any, step: int) -> None:
        self._logged = step
        if hvd.rank() == 0:
            for logger in trainer.loggers:
                logger.log_metrics(flat(hvd.metrics(), self._prefix), step=step)
