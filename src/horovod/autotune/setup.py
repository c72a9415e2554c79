"""Starts and ends the autotuning of each world: on rank 0 alone, and only if it is enabled."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from horovod.autotune.knobs import Surroundings, Values, knobs_for, values_of
from horovod.autotune.log import SampleLog
from horovod.autotune.steps import StepMeter
from horovod.autotune.tuner import Progress, Tuner
from horovod.settings import Settings, names_given

if TYPE_CHECKING:
    from horovod import _native

__all__ = ["Autotuning"]


class Autotuning:
    """The autotuning of a process; each world continues the search of the world before it."""

    def __init__(self, tuning_of: Callable[[Settings], _native.Tuning]) -> None:
        """``tuning_of`` converts settings to what an engine takes."""
        self._tuning_of = tuning_of
        self._progress: Progress | None = None
        self._around: Surroundings | None = None
        self._tuner: Tuner | None = None
        self._is_over = threading.Event()

    def begin(
        self,
        engine: _native.Engine,
        settings: Settings,
        around: Surroundings,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Tune the world of ``engine``, rank 0's; does nothing if autotuning is not enabled."""
        if not settings.autotune:
            return

        def apply(values: Values) -> None:
            changed: dict[str, Any] = dict(values)
            engine.tune(self._tuning_of(replace(settings, **changed)))

        progress = self._progress_in(settings, around, environ)
        if progress.result is not None:
            apply(progress.result)
            return
        self._is_over = threading.Event()
        self._tuner = Tuner(settings, progress, StepMeter(engine, self._is_over), apply)

    def end(self) -> None:
        """The world has ended."""
        self._is_over.set()
        if self._tuner is not None:
            self._tuner.close()
            self._tuner = None

    def abandon(self) -> None:
        """Forget the thread, which a forked child does not have."""
        self._tuner = None

    def _progress_in(
        self, settings: Settings, around: Surroundings, environ: Mapping[str, str]
    ) -> Progress:
        """The progress of the worlds before, if they had the same knobs."""
        if self._progress is None or self._around != around:
            knobs = knobs_for(settings, names_given(environ), around)
            log = SampleLog(settings.autotune_log, settings.cache_capacity > 0, around.spans_hosts)
            self._progress, self._around = Progress(knobs, values_of(settings), log), around
        return self._progress
