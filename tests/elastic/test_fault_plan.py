"""The plan of a seed."""

from __future__ import annotations

import random

from fault_plan import KINDS, plan_faults
from rounds import plan_round


def test_a_seed_is_a_round():
    assert plan_round(5, 12) == plan_round(5, 12)
    assert plan_round(5, 12) != plan_round(6, 12)


def test_all_kinds_come():
    assert {fault.kind for fault in plan_faults(random.Random(1), 300)} == set(KINDS)
