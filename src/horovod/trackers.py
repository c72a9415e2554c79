"""Sends ``hvd.metrics()`` to TensorBoard, Weights & Biases or MLflow; see docs/observability.md.

    tracker = TensorBoardWriter("logs", every=100)
    for batch in batches:
        train(batch)
        tracker.step()
    tracker.close()

``horovod.keras.callbacks.TrackerCallback`` does the same in ``model.fit``. Rank 0 sends, on the
thread that calls ``step``. A library is imported by the first ``step`` of a rank that sends.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from numbers import Real
from typing import Any

from horovod.core import world
from horovod.core.world import metrics

__all__ = ["MlflowLogger", "TensorBoardWriter", "Tracker", "WandbLogger", "flat"]


def flat(numbers: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """``{name: float}`` of nested mappings, with ``/`` between names.

    Values that are no finite numbers are left out.
    """
    found: dict[str, float] = {}
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}/")
        elif isinstance(value, Real) and math.isfinite(value):
            found[f"{prefix}{name}"] = float(value)
    return found


class Tracker:
    """Sends ``hvd.metrics()`` every ``every`` steps; the base of a sender for one library.

    Args:
        every: calls of ``step`` between two sends.
        prefix: in front of each name.
        all_ranks: every rank sends, with ``rank<N>/`` after the prefix; otherwise only rank 0. In
            an elastic job the process sends that is rank 0 at that moment.

    Raises:
        ImportError: the package of the library is not installed; on every rank.
        ValueError: ``every`` is below 1.
    """

    _package = ""  # empty for none

    def __init__(
        self, *, every: int = 100, prefix: str = "horovod/", all_ranks: bool = False
    ) -> None:
        if every < 1:
            raise ValueError(f"{type(self).__name__}: every={every}; expected at least 1")
        if self._package and find_spec(self._package) is None:
            raise ImportError(
                f"{type(self).__name__} needs {self._package}, which is not installed here: "
                f"pip install {self._package}",
                name=self._package,
            )
        self._every = every
        self._prefix = prefix
        self._all_ranks = all_ranks
        self._step = 0
        self._sent: int | None = None
        self._is_open = False

    def step(self, number: int | None = None) -> None:
        """Count a step of training, and send if it is time; does not communicate with other ranks.

        ``number`` is the number of the step, by default that of this call. Call it after ``init``.
        """
        self._step = self._step + 1 if number is None else number
        if self._sends():
            self._ensure_open()
            if self._step % self._every == 0:
                self.send()

    def send(self) -> None:
        """Send the numbers of this moment, if this rank sends and has not sent at this step."""
        if self._sends() and self._sent != self._step:
            self._ensure_open()
            self._sent = self._step
            rank = f"rank{world.rank()}/" if self._all_ranks else ""
            self._write(flat(metrics(), self._prefix + rank), self._step)

    def close(self) -> None:
        """Finish what this object has opened: the file or the run. It may be repeated."""
        if self._is_open:
            self._is_open = False
            self._close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sends(self) -> bool:
        return self._all_ranks or world.rank() == 0

    def _ensure_open(self) -> None:
        if not self._is_open:
            self._open()
            self._is_open = True

    def _open(self) -> None:
        """Import the library, and open a file or a run."""

    def _write(self, numbers: Mapping[str, float], step: int) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        """Close what ``_open`` has opened."""


class TensorBoardWriter(Tracker):
    """Writes scalars for TensorBoard.

    Args:
        log_dir: a folder; or an object with ``add_scalar(name, value, step)``, such as PyTorch's
            ``SummaryWriter``, which stays open.
        options: see ``Tracker``.
    """

    def __init__(self, log_dir: str | os.PathLike[str] | Any, **options: Any) -> None:
        self._writer: Any = log_dir if hasattr(log_dir, "add_scalar") else None
        self._package = "" if self._writer else "tensorboard"
        self._log_dir = log_dir
        super().__init__(**options)

    def _open(self) -> None:
        if self._package:
            library = import_module("tensorboard.summary")
            self._writer = library.Writer(os.fspath(self._log_dir))

    def _write(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def _close(self) -> None:
        if self._package:
            self._writer.close()


class WandbLogger(Tracker):
    """Logs to a run of Weights & Biases.

    The step is logged as ``<prefix>step``, the x axis of the numbers, so the run's own step may
    count something else.

    Args:
        run: the run; by default the one that is active at the first step, or a new one.
        init: arguments of ``wandb.init`` for a new run, such as ``{"project": "digits"}``.
        options: see ``Tracker``.
    """

    _package = "wandb"

    def __init__(self, run: Any = None, *, init: Mapping[str, Any] | None = None, **options: Any):
        super().__init__(**options)
        self._run = run
        self._init = dict(init or {})
        self._is_own = False

    def _open(self) -> None:
        if self._run is None:
            wandb = import_module("wandb")
            self._is_own = wandb.run is None
            self._run = wandb.init(**self._init) if self._is_own else wandb.run
        self._run.define_metric(f"{self._prefix}*", step_metric=f"{self._prefix}step")

    def _write(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log({**numbers, f"{self._prefix}step": step})

    def _close(self) -> None:
        if self._is_own:
            self._run.finish()
            self._run, self._is_own = None, False


class MlflowLogger(Tracker):
    """Logs to a run of MLflow.

    Args:
        run_id: the run; by default the one that is active at the first step, or a new one.
        start_run: arguments of ``mlflow.start_run`` for a new run, such as ``{"run_name": "a"}``.
        options: see ``Tracker``.
    """

    _package = "mlflow"

    def __init__(
        self,
        run_id: str | None = None,
        *,
        start_run: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._run_id = run_id
        self._start_run = dict(start_run or {})
        self._is_own = False

    def _open(self) -> None:
        self._mlflow = import_module("mlflow")
        if self._run_id is None:
            run = self._mlflow.active_run()
            self._is_own = run is None
            run = run or self._mlflow.start_run(**self._start_run)
            self._run_id = run.info.run_id

    def _write(self, numbers: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(numbers), step=step, run_id=self._run_id)

    def _close(self) -> None:
        if self._is_own:
            self._mlflow.end_run()
            self._run_id, self._is_own = None, False
