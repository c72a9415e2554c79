"""Chooses faults, their order and their time from a seed. Pure functions."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from traps import POINTS

__all__ = ["KINDS", "Fault", "Limits", "plan_faults", "plan_layout"]

KINDS = {
    "kill": 4,
    "kill leader": 2,
    "kill two": 2,
    "kill newcomer": 2,
    "kill at": 3,
    "kill in recovery": 3,
    "stop": 1,
    "stop leader": 1,
    "host gone": 2,
    "host removed": 2,
    "host added": 2,
    "hosts replaced": 2,
    "slots changed": 2,
    "discovery garbage": 1,
    "discovery failing": 1,
    "discovery slow": 1,
}
"""What can happen, with how often it does."""


@dataclass(frozen=True)
class Fault:
    """``kind`` happens after the newest world has done ``after`` batches.

    ``pick``, from 0 to below 1, chooses among the possible victims. ``point``, ``for_leader`` and
    ``delay_s`` are those of a ``Trap``. A hasty fault does not wait until all workers are there.
    """

    kind: str
    after: int = 5
    pick: float = 0.0
    point: str = ""
    for_leader: bool | None = None
    delay_s: float = 0.0
    is_hasty: bool = False

    def __str__(self) -> str:
        at = f" {self.point}" if self.point else ""
        who = {None: "", True: " of rank 0", False: " of another rank"}[self.for_leader]
        return f"{self.kind}{at}{who}{' in haste' if self.is_hasty else ''}"


@dataclass(frozen=True)
class Limits:
    """The limits of the job's size, and its first hosts."""

    min_np: int
    max_np: int
    hosts: Mapping[str, int]

    def full_size(self, hosts: Mapping[str, int]) -> int:
        """The number of workers of a complete world."""
        return min(self.max_np, sum(hosts.values()))


def plan_faults(chance: random.Random, count: int, kinds: Mapping[str, int] = KINDS) -> list[Fault]:
    """``count`` faults of these kinds."""
    names = chance.choices(list(kinds), list(kinds.values()), k=count)
    return [_fault(chance, name) for name in names]


def _fault(chance: random.Random, kind: str) -> Fault:
    point, delay_s = "", 0.0
    if kind == "kill at":
        point = chance.choice([p for p in POINTS if p in ("batch", "save")])
    if kind == "kill in recovery":
        point = chance.choice([p for p in POINTS if p not in ("batch", "save")])
        delay_s = chance.choice([0.0, chance.uniform(0, 0.2)])
    return Fault(
        kind,
        after=chance.randint(1, 60),
        pick=chance.random(),
        point=point,
        for_leader=chance.choice([None, True, False]) if point else None,
        delay_s=delay_s,
        is_hasty=chance.random() < 0.3,
    )


def plan_layout(chance: random.Random) -> Limits:
    """Two to six workers on hosts of one or two slots, some with more slots than workers."""
    counts = chance.choice(
        [(1, 1, 1, 1), (2, 2), (2, 2, 2), (1, 1, 1), (2, 1, 1), (1, 1, 1, 1, 1, 1), (2, 2, 1, 1)]
    )
    hosts = {f"127.0.0.{number}": slots for number, slots in enumerate(counts, start=1)}
    max_np = min(sum(counts), chance.choice([4, 4, 6]))
    return Limits(min_np=chance.choice([1, 2, 2]), max_np=max_np, hosts=hosts)
