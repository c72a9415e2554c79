"""What the loss of hosts costs an elastic job, and how often it should call ``state.commit()``.

Hosts fail independently, at a constant rate. A failure costs the steps since the last commit, which
are half an interval on average, and the recovery, in which another host may fail. Commits are too
rare or too frequent on both sides of one interval, which is found here (J. T. Daly, "A higher order
estimate of the optimum checkpoint interval", 2006; the exact time, not his approximation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from horovod.core.base.checked import is_number

_MOST_S = 1e12
_SEARCHES = 200  # each leaves 0.62 of the range


@dataclass(frozen=True)
class Failures:
    """How often hosts fail, and what that costs.

    Attributes:
        mtbf_s: the mean time between failures of one host.
        recovery_s: from a failure to the next step, of as many ranks as before.
        commit_s: one ``state.commit()``.
    """

    mtbf_s: float
    recovery_s: float
    commit_s: float

    def __post_init__(self) -> None:
        for name, least in (("mtbf_s", 1e-3), ("recovery_s", 0.0), ("commit_s", 1e-9)):
            value = getattr(self, name)
            if not is_number(value) or not least <= value <= _MOST_S:
                raise ValueError(f"failures: {name} must be in {least:g} to {_MOST_S:g}: {value}")


@dataclass(frozen=True)
class Losses:
    """The best that a job can do where hosts fail.

    Attributes:
        commit_steps: steps from one ``state.commit()`` to the next.
        useful: the part of all time that steps take which are never lost.
        useful_each_step: the same if every step is committed.
        between_s: the mean time between two failures of any host.
    """

    commit_steps: int
    useful: float
    useful_each_step: float
    between_s: float


def losses_of(step_s: float, hosts: int, failures: Failures) -> Losses:
    """What failures cost ``hosts`` hosts with steps of ``step_s``."""
    between_s = failures.mtbf_s / hosts
    best_s = _best_interval(between_s, failures, step_s)
    steps = max(1, round(best_s / step_s))
    return Losses(
        steps,
        _useful(steps * step_s, between_s, failures),
        _useful(step_s, between_s, failures),
        between_s,
    )


def _useful(interval_s: float, between_s: float, failures: Failures) -> float:
    """The part of the time that is kept, with a commit after each ``interval_s`` of steps.

    The mean time until ``needed_s`` have passed without a failure, if each costs a recovery that
    may fail, too, is ``between_s * exp(recovery_s / between_s) * (exp(needed_s / between_s) - 1)``.
    """
    needed_s = interval_s + failures.commit_s
    try:
        tries = math.exp(failures.recovery_s / between_s) * math.expm1(needed_s / between_s)
    except OverflowError:  # it never gets there
        return 0.0
    return interval_s / (between_s * tries)


def _best_interval(between_s: float, failures: Failures, step_s: float) -> float:
    """Where ``_useful`` is largest, which has one maximum, by golden-section search."""
    low, high = math.log(step_s), math.log(max(2 * step_s, 10 * between_s))
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(_SEARCHES):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if _useful(math.exp(left), between_s, failures) < _useful(
            math.exp(right), between_s, failures
        ):
            low = left
        else:
            high = right
    return math.exp((low + high) / 2)
