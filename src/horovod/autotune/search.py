"""What is tried in which order, and what wins. Pure: no clock, thread or engine.

The defaults come first, then the explorer's proposals. At the end the best values and the defaults
run in turns: one sample may be luck, so the defaults stay unless they clearly lose.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from horovod.autotune.explorer import Explorer
from horovod.autotune.knobs import INITIAL_POINTS, Knob, Values

PAIRS = 7  # pairs of samples in the comparison at the end
_LEAST_GAIN = 1.02  # the median of the pairs
_MOST_LOST = 1  # pairs that the winner may lose


@dataclass(frozen=True)
class Proposal:
    """Values to measure, and the phase of the search they belong to."""

    values: Values
    phase: str


@dataclass(frozen=True)
class Result:
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
        self._result: Result | None = None
        self._steps = self._run()
        self._proposal: Proposal | None = None
        self._advance(None)

    @property
    def result(self) -> Result | None:
        """The result; None as long as there is something to propose."""
        return self._result

    def propose(self) -> Proposal | None:
        """What to measure next; None when the search has ended."""
        return self._proposal

    def tell(self, score: float) -> None:
        """The score of the proposal; more is better."""
        self._advance(score)

    def _advance(self, score: float | None) -> None:
        try:
            self._proposal = next(self._steps) if score is None else self._steps.send(score)
        except StopIteration as end:
            self._proposal, self._result = None, end.value

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
