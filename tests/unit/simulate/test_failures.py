"""Failures of hosts: the formula against drawn failures, and the best interval of commits."""

from __future__ import annotations

import math
import random

import pytest

from horovod.simulate import Failures
from horovod.simulate.failures import losses_of

HOUR_S = 3600.0


def drawn(interval_s: float, between_s: float, failures: Failures, seed: int) -> float:
    """The useful part of many intervals in which failures are drawn."""
    chance, whole_s, intervals = random.Random(seed), 0.0, 20_000

    def until_failure_s() -> float:
        return chance.expovariate(1 / between_s)

    for _ in range(intervals):
        needed_s = interval_s + failures.commit_s
        while (lived_s := until_failure_s()) < needed_s:
            whole_s += lived_s
            while (lived_s := until_failure_s()) < failures.recovery_s:
                whole_s += lived_s  # another failure; it begins again
            whole_s += failures.recovery_s
        whole_s += needed_s
    return intervals * interval_s / whole_s


@pytest.mark.parametrize("recovery_s", [0.0, 60.0])
def test_the_time_is_that_of_drawn_failures(recovery_s: float) -> None:
    failures = Failures(100 * HOUR_S, recovery_s, commit_s=2.0)
    found = losses_of(1.0, hosts=500, failures=failures)
    assert found.between_s == 720
    expected = drawn(float(found.commit_steps), found.between_s, failures, seed=1)
    assert found.useful == pytest.approx(expected, rel=0.01)
    expected = drawn(1.0, found.between_s, failures, seed=2)
    assert found.useful_each_step == pytest.approx(expected, rel=0.01)


def test_the_interval_is_near_the_known_first_order_one() -> None:
    """The square root of 2 x commit x time between failures, where commits are cheap."""
    found = losses_of(0.1, hosts=10, failures=Failures(1e7, 1.0, commit_s=0.5))
    assert found.commit_steps * 0.1 == pytest.approx(math.sqrt(2 * 0.5 * 1e6), rel=0.01)
    assert found.useful > found.useful_each_step


def test_hosts_that_fail_all_the_time() -> None:
    found = losses_of(1.0, hosts=100_000, failures=Failures(10.0, 60.0, 1.0))
    assert found.useful == 0
    assert found.commit_steps >= 1


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ((0, 1, 1), "mtbf_s must be in 0.001 to 1e"),
        ((math.inf, 1, 1), "mtbf_s must be"),
        ((1, -1, 1), "recovery_s must be in 0 to"),
        ((1, 1, 0), "commit_s must be in 1e-09 to"),
    ],
)
def test_wrong_numbers(values: tuple[float, float, float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Failures(*values)
