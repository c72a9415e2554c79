"""Callbacks that give ``hvd.metrics()`` to the Trainer's loggers, and its numbers to the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import horovod.torch as hvd
from horovod.lightning.library import Callback
from horovod.metrics.sampling import MOST_NAME
from horovod.trackers import flat


class LogMetricsCallback(Callback):
    """Shows the loss and what the module logs in the page of ``horovodrun --report``.

        Trainer(strategy=HorovodStrategy(), callbacks=[LogMetricsCallback(batch_size=32)])

    The numbers of this rank after each batch, those whose names begin with ``val`` after each
    validation; see ``hvd.log_metrics``.

    Args:
        batch_size: the samples of a batch of this rank; with it samples per second are shown, too.
    """

    def __init__(self, batch_size: int = 0) -> None:
        self._batch_size = batch_size

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *batch: Any) -> None:
        """Log the numbers of training."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        numbers = {} if loss is None else {"loss": loss}
        numbers |= _logged(trainer, of_validation=False)
        hvd.log_metrics(numbers, trainer.global_step, samples=self._batch_size)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the numbers of a validation."""
        if not trainer.sanity_checking:
            hvd.log_metrics(_logged(trainer, of_validation=True), trainer.global_step)


def _logged(trainer: Any, *, of_validation: bool) -> dict[str, Any]:
    return {
        name[:MOST_NAME]: value
        for name, value in trainer.callback_metrics.items()
        if name.startswith("val") == of_validation
    }


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
