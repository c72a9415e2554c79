"""Which values to try next: optuna's ask and tell, over the levels of the knobs; needs optuna."""

from __future__ import annotations

import math
from collections.abc import Sequence

import optuna

from horovod.autotune.gaussian import GaussianProcess
from horovod.autotune.knobs import Knob, Values

__all__ = ["Explorer"]

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Explorer:
    """A study of the knobs; ``first`` are points to begin with, each only once."""

    def __init__(self, knobs: Sequence[Knob], first: Sequence[Values], noise: float) -> None:
        self._knobs = knobs
        self._space = {
            knob.name: optuna.distributions.IntDistribution(0, len(knob.levels) - 1)
            for knob in knobs
        }
        sampler = GaussianProcess({knob.name: len(knob.levels) for knob in knobs}, noise)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._asked: optuna.trial.Trial | None = None
        for values in first:
            places = {knob.name: _nearest(knob, values[knob.name]) for knob in knobs}
            self._study.enqueue_trial(places, skip_if_exists=True)

    @property
    def point_count(self) -> int:
        """How many different points there are."""
        return math.prod(len(knob.levels) for knob in self._knobs)

    def ask(self) -> Values:
        """What to try next."""
        self._asked = self._study.ask(dict(self._space))
        return {knob.name: knob.levels[self._asked.params[knob.name]] for knob in self._knobs}

    def tell(self, score: float) -> None:
        """How good the last answer of ``ask`` is; more is better."""
        if self._asked is not None:
            self._study.tell(self._asked, score)
            self._asked = None


def _nearest(knob: Knob, value: float) -> int:
    return min(range(len(knob.levels)), key=lambda place: abs(knob.levels[place] - value))
