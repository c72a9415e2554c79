"""What a seed decides, and which faults a world can survive."""

from __future__ import annotations

import random

import pytest
from fault_plan import KINDS, plan_faults, safe_victims
from rounds import plan_round


def test_a_seed_is_a_round():
    assert plan_round(5, 12) == plan_round(5, 12)
    assert plan_round(5, 12) != plan_round(6, 12)


def test_all_kinds_come():
    assert {fault.kind for fault in plan_faults(random.Random(1), 300)} == set(KINDS)


@pytest.mark.parametrize(
    ("members", "victims", "further", "is_safe"),
    [
        ("abcd", [0], 0, True),
        ("abcd", [0, 2], 1, True),
        ("abcd", [0, 2], 2, False),
        ("aabb", [0], 1, True),
        ("aabb", [0, 1], 0, True),
        ("aabb", [0, 2], 0, False),  # both hosts would be blacklisted
        ("aa", [1], 0, True),
        ("aa", [1], 1, False),
        ("a", [0], 0, False),
    ],
)
def test_who_may_be_lost(members: str, victims: list[int], further: int, is_safe: bool):
    assert safe_victims(members, victims, further=further) == is_safe
