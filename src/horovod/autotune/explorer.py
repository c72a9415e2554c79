"""Which values to try next: Bayesian optimisation over the grid of the knobs' levels.

A Gaussian process over all samples predicts the score of each untried point; the point with the
highest expected improvement is next. Scores are scaled to a variance of one, points to a cube with
sides of one. The noise is given: there are too few samples to learn it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from horovod.autotune.knobs import Knob, Values

Array = npt.NDArray[np.float64]
_Point = tuple[int, ...]  # the index of a level of each knob
_LENGTH = 0.5  # the length scale of the covariance, in sides of the cube
_LEAST_NOISE = 1e-6


class Explorer:
    """Proposes points of the grid, each once: those of ``first``, then the most promising ones.

    ``noise`` is the part of the scores' variance that is chance, from 0 to 1.
    """

    def __init__(self, knobs: Sequence[Knob], first: Sequence[Values], noise: float) -> None:
        self._knobs = knobs
        self._noise = max(noise, _LEAST_NOISE)
        counts = [len(knob.levels) for knob in knobs]
        self._scale = np.array([count - 1 for count in counts], dtype=np.float64)
        self._untried = list(itertools.product(*map(range, counts)))
        self._first = list(dict.fromkeys(self._nearest(values) for values in first))
        self._tried: list[_Point] = []
        self._scores: list[float] = []

    @property
    def point_count(self) -> int:
        """The number of different points."""
        return len(self._untried) + len(self._tried)

    def ask(self) -> Values:
        """The next point to try."""
        point = self._first.pop(0) if self._first else self._best_untried()
        self._untried.remove(point)
        self._tried.append(point)
        return {
            knob.name: knob.levels[index] for knob, index in zip(self._knobs, point, strict=True)
        }

    def tell(self, score: float) -> None:
        """The score of the last answer of ``ask``; more is better."""
        self._scores.append(score)

    def _nearest(self, values: Values) -> _Point:
        distances = (
            [abs(level - values[knob.name]) for level in knob.levels] for knob in self._knobs
        )
        return tuple(each.index(min(each)) for each in distances)

    def _best_untried(self) -> _Point:
        tried, untried = self._in_cube(self._tried), self._in_cube(self._untried)
        gains = _expected_improvement(tried, self._scores, untried, self._noise)
        return self._untried[int(np.argmax(gains))]

    def _in_cube(self, points: Sequence[_Point]) -> Array:
        return np.array(points, dtype=np.float64) / self._scale


def _expected_improvement(
    tried: Array, scores: Sequence[float], untried: Array, noise: float
) -> Array:
    """The expected excess of each ``untried`` point over the best one ``tried``."""
    values = np.array(scores)
    values = (values - values.mean()) / (values.std() or 1.0)
    across = _covariance(untried, tried)
    among = _covariance(tried, tried)
    inverse = np.linalg.inv(among + noise * np.eye(len(values)))
    weights = inverse @ values
    deviation = np.sqrt(np.maximum(1.0 - ((across @ inverse) * across).sum(axis=1), 1e-12))
    ahead = across @ weights - (among @ weights).max()
    ratio = ahead / deviation
    density = np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    below = np.array([math.erfc(-each / math.sqrt(2)) / 2 for each in ratio])
    gains: Array = ahead * below + deviation * density
    return gains


def _covariance(one: Array, other: Array) -> Array:
    """The Matern covariance with smoothness 5/2."""
    squares = ((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=2)
    distance = np.sqrt(5 * squares) / _LENGTH
    covariance: Array = (1 + distance + distance**2 / 3) * np.exp(-distance)
    return covariance
