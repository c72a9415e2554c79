"""What is tried in which order, and what wins in the end. Without clock, thread or engine.

First the defaults, then what the explorer says. At last the best of all and the defaults run in
turns: a single sample may have been luck, so the defaults stay unless they clearly lose.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from horovod.autotune.knobs import INITIAL_POINTS, Knob, Values

__all__ = ["PAIRS", "Proposal", "Search", "Verdict"]

PAIRS = 7  # of samples, in the comparison at the end
_CLEARLY = 1.02  # times as fast, the median of the pairs
_MOST_LOST = 1  # pairs that the better one may lose


@dataclass(frozen=True)
class Proposal:
    """Values to measure; ``phase`` is what for."""

    values: Values
    phase: str


@dataclass(frozen=True)
class Verdict:
    """What the search has found: values, their score, and the score over that of the defaults."""

    values: Values
    score: float
    gain: float = 1.0


class Search:
    """Ask ``propose`` what to measure and ``tell`` it the score, until it proposes nothing more.

    It may be asked again without an answer, and proposes the same once more.
    """

    def __init__(
        self, knobs: Sequence[Knob], defaults: Values, max_samples: int, noise: float
    ) -> None:
        """``knobs``: what is searched; ``defaults``: all values, where the search begins."""
        self._knobs = knobs
        self._defaults = dict(defaults)
        self._max_samples = max_samples
        self._noise = noise
        self._verdict: Verdict | None = None
        self._course = self._begin()
        self._proposal: Proposal | None = None
        self._advance(None)

    @property
    def verdict(self) -> Verdict | None:
        """The end of it; None as long as there is something to propose."""
        return self._verdict

    def propose(self) -> Proposal | None:
        """What to measure next; None when it is over."""
        return self._proposal

    def tell(self, score: float) -> None:
        """The score of what was proposed; more is better."""
        self._advance(score)

    def _advance(self, score: float | None) -> None:
        try:
            self._proposal = next(self._course) if score is None else self._course.send(score)
        except StopIteration as end:
            self._proposal, self._verdict = None, end.value

    def _begin(self) -> Generator[Proposal, float, Verdict]:
        best = yield from self._explore()
        if best.values == self._defaults:
            return best
        return (yield from self._compare(best.values))

    def _explore(self) -> Generator[Proposal, float, Verdict]:
        if not self._knobs:
            return Verdict(self._defaults, (yield Proposal(self._defaults, "search")))
        # Here, because optuna is an extra, and takes a while to load.
        from horovod.autotune.explorer import Explorer

        explorer = Explorer(self._knobs, self._first_points(), self._noise)
        best = Verdict(self._defaults, 0.0)
        for _ in range(min(self._max_samples, explorer.point_count)):
            values = {**self._defaults, **explorer.ask()}
            score = yield Proposal(values, "search")
            explorer.tell(score)
            if score > best.score:
                best = Verdict(values, score)
        return best

    def _first_points(self) -> list[Values]:
        points: list[Values] = [self._defaults]
        levels = {knob.name: knob.levels for knob in self._knobs}
        for point in INITIAL_POINTS:
            if all(value in levels.get(name, ()) for name, value in point.items()):
                points.append({**self._defaults, **point})
        return points

    def _compare(self, best: Values) -> Generator[Proposal, float, Verdict]:
        gains, best_scores, default_scores = [], [], []
        for pair in range(PAIRS):
            # Whoever is second may profit from the first, so that changes.
            first, second = (best, self._defaults) if pair % 2 else (self._defaults, best)
            one = yield Proposal(first, "comparison")
            other = yield Proposal(second, "comparison")
            ours, default = (one, other) if pair % 2 else (other, one)
            gains.append(ours / default)
            best_scores.append(ours)
            default_scores.append(default)
        lost = sum(gain <= 1 for gain in gains)
        gain = statistics.median(gains)
        if gain >= _CLEARLY and lost <= _MOST_LOST:
            return Verdict(best, statistics.median(best_scores), gain)
        return Verdict(self._defaults, statistics.median(default_scores))
