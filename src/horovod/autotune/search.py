"""What is tried in which order, and what wins. Pure: no clock, thread or engine.

The defaults come first, then the explorer's proposals. At the end the best values and the defaults
run in turns: one sample may be luck, so the defaults stay unless they clearly lose.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Generator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from horovod.autotune.knobs import INITIAL_POINTS, Knob, Values

Array = npt.NDArray[np.float64]
_Point = tuple[int, ...]  # the index of a level of each knob
_LENGTH = 0.5  # the length scale of the covariance, in sides of the cube
_LEAST_NOISE = 1e-6


class Explorer:
    """Proposes points of the grid, each once: those of ``first``, then the most promising ones.

    This is Bayesian optimisation over the grid of the knobs' levels. A Gaussian process over all
    samples predicts the score of each untried point; the point with the highest expected
    improvement is next. Scores are scaled to a variance of one, points to a cube with sides of one.
    The noise is given: there are too few samples to learn it.

    ``noise`` is the part of the scores' variance that is chance, from 0 to 1.
    """

    def __init__(self, knobs: Sequence[Knob], first: Sequence[Values], noise: float) -> None:
        self._knobs = knobs
        self._noise = max(noise, _LEAST_NOISE)
        counts = [len(knob.levels) for knob in knobs]
        self._scale = np.array([count - 1 for count in counts], dtype=np.float64)
        self._untried = list(itertools.product(*map(range, counts)))
        self._first = list(dict.fromkeys(self._point_of(values) for values in first))
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

    def _point_of(self, values: Values) -> _Point:
        return tuple(knob.levels.index(values[knob.name]) for knob in self._knobs)

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


PAIRS = 7  # pairs of samples in the comparison at the end
_LEAST_GAIN = 1.02  # the median of the pairs
_MOST_LOST = 1  # pairs that the winner may lose


class Proposal(NamedTuple):
    """Values to measure, and the phase of the search they belong to."""

    values: Values
    phase: str


class Result(NamedTuple):
    """The result: values, their score, and the score divided by that of the defaults."""

    values: Values
    score: float
    gain: float = 1.0


class Search:
    """Ask ``propose`` what to measure and ``tell`` it the score, until it proposes nothing.

    ``propose`` returns the same until ``tell`` is called.
    """

    def __init__(
        self, knobs: Sequence[Knob], defaults: Values, max_samples: int, noise: float
    ) -> None:
        """``defaults``: the values of all settings, where the search begins."""
        self._knobs = knobs
        self._defaults = dict(defaults)
        self._max_samples = max_samples
        self._noise = noise
        self.result: Result | None = None  # as long as there is something to propose
        self._steps = self._run()
        self._proposal: Proposal | None = None
        self._advance(None)

    def propose(self) -> Proposal | None:
        """The next values to measure; None when the search has ended."""
        return self._proposal

    def tell(self, score: float) -> None:
        """The score of the proposal; more is better."""
        self._advance(score)

    def _advance(self, score: float | None) -> None:
        try:
            self._proposal = next(self._steps) if score is None else self._steps.send(score)
        except StopIteration as end:
            self._proposal, self.result = None, end.value

    def _run(self) -> Generator[Proposal, float, Result]:
        best = yield from self._explore()
        if best.values == self._defaults:
            return best
        return (yield from self._compare(best.values))

    def _explore(self) -> Generator[Proposal, float, Result]:
        if not self._knobs:
            return Result(self._defaults, (yield Proposal(self._defaults, "search")))
        explorer = Explorer(self._knobs, self._first_points(), self._noise)
        best = Result(self._defaults, 0.0)
        for _ in range(min(self._max_samples, explorer.point_count)):
            values = {**self._defaults, **explorer.ask()}
            score = yield Proposal(values, "search")
            explorer.tell(score)
            if score > best.score:
                best = Result(values, score)
        return best

    def _first_points(self) -> list[Values]:
        points: list[Values] = [self._defaults]
        levels = {knob.name: knob.levels for knob in self._knobs}
        for point in INITIAL_POINTS:
            if all(value in levels.get(name, ()) for name, value in point.items()):
                points.append({**self._defaults, **point})
        return points

    def _compare(self, best: Values) -> Generator[Proposal, float, Result]:
        gains, best_scores, default_scores = [], [], []
        for pair in range(PAIRS):
            # The second sample of a pair may profit from the first, so the order alternates.
            first, second = (best, self._defaults) if pair % 2 else (self._defaults, best)
            one = yield Proposal(first, "comparison")
            other = yield Proposal(second, "comparison")
            ours, default = (one, other) if pair % 2 else (other, one)
            gains.append(ours / default)
            best_scores.append(ours)
            default_scores.append(default)
        lost = sum(gain <= 1 for gain in gains)
        gain = statistics.median(gains)
        if gain >= _LEAST_GAIN and lost <= _MOST_LOST:
            return Result(best, statistics.median(best_scores), gain)
        return Result(self._defaults, statistics.median(default_scores))
