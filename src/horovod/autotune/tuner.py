"""The thread of rank 0 that tunes one world. It sleeps while steps are measured."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from horovod.autotune.knobs import Knob, Values, narrowed
from horovod.autotune.log import Sample, SampleLog
from horovod.autotune.search import Search
from horovod.autotune.steps import StepMeter
from horovod.errors import HorovodInternalError
from horovod.settings import Settings

__all__ = ["Progress", "Tuner"]

_log = logging.getLogger("horovod")


@dataclass
class Progress:
    """The state of the search, which the next world continues."""

    knobs: tuple[Knob, ...]
    defaults: Values
    log: SampleLog
    step_bytes: float = 0.0
    search: Search | None = None  # None until ``step_bytes`` is known
    result: Values | None = None  # the values it has ended with


class Tuner:
    """Tunes from construction until ``close`` or until the search has ended."""

    def __init__(
        self,
        settings: Settings,
        progress: Progress,
        meter: StepMeter,
        apply: Callable[[Values], None],
    ) -> None:
        """``apply`` sets values for all ranks."""
        self._settings = settings
        self._progress = progress
        self._meter = meter
        self._apply = apply
        self._thread = threading.Thread(target=self._run, name="horovod-autotune", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait at most a second for the thread, whose meter has ended."""
        self._thread.join(1.0)

    def _run(self) -> None:
        try:
            self._tune()
        except HorovodInternalError as error:
            _log.debug("autotune: %s", error)
        except Exception:
            _log.exception("autotune ends without a result")

    def _tune(self) -> None:
        progress, steps = self._progress, self._settings.autotune_steps_per_sample
        if not self._warm_up(steps):
            return
        search = progress.search = progress.search or self._new_search()
        while (proposal := search.propose()) is not None:
            self._apply(proposal.values)
            step_ns = self._meter.step_ns(steps)
            if step_ns is None:
                return
            if self._meter.has_joined():
                self._give_up()
                return
            score = progress.step_bytes * 1e3 / step_ns
            search.tell(score)
            progress.log.write(Sample(proposal.values, score, step_ns / 1e6, proposal.phase))
        self._conclude(search)

    def _warm_up(self, steps: int) -> bool:
        """Discard the first samples, but note a step's bytes; false if the world ends."""
        samples = self._settings.autotune_warmup_samples
        step_bytes = self._meter.step_bytes(max(samples, 1) * steps)
        # Set once, so that all scores of a search can be compared.
        self._progress.step_bytes = self._progress.step_bytes or step_bytes or 1.0
        return step_bytes is not None

    def _new_search(self) -> Search:
        progress, settings = self._progress, self._settings
        return Search(
            narrowed(progress.knobs, progress.defaults, progress.step_bytes),
            progress.defaults,
            settings.autotune_bayes_opt_max_samples,
            settings.autotune_gaussian_process_noise,
        )

    def _conclude(self, search: Search) -> None:
        result, progress = search.result, self._progress
        if result is None:
            return
        self._apply(result.values)
        step_ms = progress.step_bytes / result.score / 1e3
        progress.log.write(Sample(result.values, result.score, step_ms, "result"))
        progress.log.finish(result, progress.knobs, progress.defaults)
        progress.result = result.values

    def _give_up(self) -> None:
        self._progress.result = self._progress.defaults
        self._apply(self._progress.defaults)
        _log.warning(
            "autotune: ends without a result, since the program has called join: steps that "
            "some ranks do not take part in cannot be measured"
        )
