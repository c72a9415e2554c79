"""Limits that contradict each other, and how long a blacklisting lasts."""

from __future__ import annotations

import math
import random

import pytest

from horovod.launch.elastic.policy.capacity import Blacklist
from horovod.launch.model.job_plan import Limits


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"min_np": 0}, r"min-np is 0; expected 1 to 4"),
        ({"min_np": 5}, r"min-np is 5; expected 1 to 4"),
        ({"max_np": 3}, r"max-np is 3; expected 4"),
        ({"reset_limit": -1}, r"reset limit is -1"),
        ({"elastic_timeout_s": -1.0}, r"elastic timeout is -1"),
        ({"cooldown": (0.5, 10.0)}, r"cooldown range is 0.5 to 10 seconds; expected at least 1"),
        ({"cooldown": (10.0, 3601.0)}, r"at most 3600"),
        ({"cooldown": (20.0, 10.0)}, r"the lesser first"),
    ],
)
def test_limits_that_make_no_sense(changes: dict[str, object], problem: str) -> None:
    fields = {
        "np": 4,
        "min_np": 2,
        "max_np": 8,
        "reset_limit": 0,
        "elastic_timeout_s": 600.0,
        "cooldown": (1.0, 3600.0),
    }
    Limits(**fields)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=problem):
        Limits(**{**fields, **changes})  # type: ignore[arg-type]


def test_without_a_cooldown_blacklisting_is_for_good() -> None:
    blacklist: Blacklist[str] = Blacklist(None, random.Random(1))
    assert blacklist.end_of(0.0, "a") is None
    assert blacklist.add(5.0, "a") == math.inf
    assert blacklist.end_of(1e9, "a") == math.inf
    assert blacklist.next_end(6.0) is None


def test_each_time_it_lasts_longer_up_to_a_limit() -> None:
    blacklist: Blacklist[str] = Blacklist((10.0, 60.0), random.Random(1))
    for lower, upper in ((20.0, 30.0), (40.0, 50.0), (60.0, 60.0), (60.0, 60.0)):
        end = blacklist.add(100.0, "a")
        assert lower <= end - 100.0 <= upper
        assert blacklist.next_end(100.0) == end
        assert blacklist.end_of(end - 0.1, "a") == end
        assert blacklist.end_of(end, "a") is None
    assert blacklist.end_of(100.0, "b") is None


def test_hosts_that_failed_together_do_not_come_back_together() -> None:
    blacklist: Blacklist[int] = Blacklist((10.0, 60.0), random.Random(1))
    assert len({blacklist.add(0.0, host) for host in range(5)}) == 5
