"""Autotuning of a process: a thread of rank 0 tunes each world, if that is enabled.

The thread sleeps while steps are measured, for about as long as they will take, so a sample reads
the engine's counters a few times.
"""

from __future__ import annotations

import logging
import os
import statistics
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from horovod.autotune.knobs import Knob, Surroundings, Values, knobs_for, narrowed, values_of
from horovod.autotune.log import Sample, SampleLog
from horovod.autotune.search import PAIRS, Search
from horovod.errors import HorovodInternalError
from horovod.metrics.counters import MOVING
from horovod.settings import Settings, names_given

if TYPE_CHECKING:
    from horovod import _native

# The step in which the values change runs with both, and the step after it is disturbed.
_SETTLING = 2
# The engine keeps the times of somewhat more steps than these.
_AT_A_TIME = 200
_LEAST_SLEEP_S = 0.005
_RECENT = 20  # steps from which the next ones are estimated
_LONGEST_SLEEP_S = 5.0


class StepMeter:
    """Samples of the steps of one world; ``is_over`` ends every wait."""

    def __init__(self, engine: _native.Engine, is_over: threading.Event) -> None:
        self._engine = engine
        self._is_over = is_over

    def step_ns(self, steps: int) -> float | None:
        """The median time of the next ``steps`` whole steps; None if the world ends before."""
        first = self._engine.counts()["steps"] + _SETTLING
        times: list[int] = []
        while len(times) < steps:
            missing = first + len(times) + min(steps - len(times), _AT_A_TIME)
            if not self._sleep_until(missing):
                return None
            times += self._engine.step_times(first + len(times))
        return statistics.median(times[:steps])

    def step_bytes(self, steps: int) -> float | None:
        """Mean bytes that this rank submits in one of the next ``steps``; None as above."""
        before = self._engine.counts()
        if not self._sleep_until(before["steps"] + steps):
            return None
        after = self._engine.counts()
        return (_bytes_in(after) - _bytes_in(before)) / (after["steps"] - before["steps"])

    def has_joined(self) -> bool:
        """Whether this rank has called ``join``."""
        return self._engine.counts()["join_operations"] > 0

    def _sleep_until(self, step: int) -> bool:
        """Wait until that step has ended; false if the world ends before."""
        pause_s, last = _LEAST_SLEEP_S, -1
        while not self._is_over.is_set():
            now = self._engine.counts()["steps"]
            if now >= step:
                return True
            # Without a new step the program does something else: wait longer each time.
            pause_s = 2 * pause_s if now == last else _LEAST_SLEEP_S
            last = now
            pause_s = min(max(pause_s, self._expected_s(now, step)), _LONGEST_SLEEP_S)
            self._is_over.wait(pause_s)
        return False

    def _expected_s(self, now: int, step: int) -> float:
        """The time from step ``now`` to ``step``, estimated from recent steps.

        A world's first steps are slow, so at most as many steps as have passed are estimated.
        """
        times = self._engine.step_times(max(0, now - _RECENT))
        return statistics.median(times) * min(step - now, now) / 1e9 if times else 0.0


def _bytes_in(counts: dict[str, int]) -> int:
    return sum(counts[f"{kind}_bytes"] for kind in MOVING)


_log = logging.getLogger("horovod")


class Autotuning:
    """The autotuning of a process; each world continues the search of the world before it."""

    def __init__(self, tuning_of: Callable[[Settings], _native.Tuning]) -> None:
        """``tuning_of`` converts settings to what an engine takes."""
        self._tuning_of = tuning_of
        self._progress: _Progress | None = None
        self._around: Surroundings | None = None
        self._tuner: _Tuner | None = None
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
        self._tuner = _Tuner(settings, progress, StepMeter(engine, self._is_over), apply)

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
    ) -> _Progress:
        """The progress of the worlds before, if they had the same knobs."""
        knobs = knobs_for(settings, names_given(environ), around)
        if self._progress is None or self._progress.knobs != knobs or self._around != around:
            log = SampleLog(settings.autotune_log, settings.cache_capacity > 0, around.spans_hosts)
            self._progress, self._around = _Progress(knobs, values_of(settings), log), around
        return self._progress


@dataclass
class _Progress:
    """The state of the search, which the next world continues."""

    knobs: tuple[Knob, ...]
    defaults: Values
    log: SampleLog
    step_bytes: float = 0.0
    search: Search | None = None  # None until ``step_bytes`` is known
    result: Values | None = None  # the values it has ended with
    has_told: bool = False  # that a world has ended before the search


@dataclass(eq=False, repr=False)
class _Tuner:
    """Tunes from construction until ``close`` or until the search has ended.

    ``_apply`` sets values for all ranks.
    """

    _settings: Settings
    _progress: _Progress
    _meter: StepMeter
    _apply: Callable[[Values], None]

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="horovod-autotune", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait at most a second for the thread, whose meter has ended."""
        self._thread.join(1.0)
        progress, settings = self._progress, self._settings
        if progress.result is None and not progress.has_told:
            progress.has_told = True
            searched = settings.autotune_bayes_opt_max_samples + 2 * PAIRS
            samples = settings.autotune_warmup_samples + searched
            _log.warning(
                "autotune: the world has ended in its %s, without a result: that "
                "takes up to %d steps (HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE and others)",
                "warm-up" if progress.search is None else "search",
                samples * settings.autotune_steps_per_sample,
            )

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
