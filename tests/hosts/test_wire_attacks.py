"""Somebody on the path between two hosts changes, repeats and cuts off what they say.

A job that is attacked goes on, or ends with a named error: no rank crashes, hangs or computes
anything wrong. HOROVOD_TEST_FLIPS says how many worlds each kind of attack gets.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from lab import Lab
from man_in_the_middle import CABLING, Connection, Kind, ManInTheMiddle, Speaker
from ranks import Job
from tampering import (
    CutOff,
    End,
    Records,
    Tamper,
    duplicate,
    flip,
    patch,
    replay,
    swap,
)

pytestmark = pytest.mark.timeout(0)

FLIPS = int(os.environ.get("HOROVOD_TEST_FLIPS", "40"))
LIMIT_S = float(os.environ.get("LIM", 60 + 2 * FLIPS))
CONTROL = (Kind.CONTROL, Kind.NEWS)
VALUES = (2**30, -(2**30), 2_000_000_000, 100_000)
# What happens to a world is this, with numbers from a generator, and what one side said at most.
Attack = Callable[[random.Random, int], Tamper]


@pytest.fixture
def middle(lab: Lab) -> Iterator[ManInTheMiddle]:
    """All that host 0 and host 1 say to each other passes here."""
    lab.open(CABLING)
    with ManInTheMiddle(lab.hosts[:2], lab.hosts[2]) as middle:
        yield middle


class Plan:
    """From the second world on, one thing happens to one of its links of these kinds.

    What it is follows from the world's number; the first world shows how much there is to change.
    """

    def __init__(self, middle: ManInTheMiddle, kinds: Sequence[Kind], attack: Attack) -> None:
        self._middle = middle
        self._kinds = kinds
        self._attack = attack
        middle.afterwards = self._tamper

    def struck(self) -> list[int]:
        """The worlds in which something was changed."""
        made = self._middle.of_kind(*self._kinds)
        return sorted(connection.number for connection in made if connection.was_struck)

    def _tamper(self, connection: Connection, speaker: Speaker) -> Tamper | None:
        world = connection.number
        if connection.kind not in self._kinds or world == 0:
            return None
        rng = random.Random(world)
        if (rng.choice(self._kinds), rng.choice(list(Speaker))) != (connection.kind, speaker):
            return None
        first = self._middle.of_kind(connection.kind)[0]
        return self._attack(rng, first.said_bytes(speaker))


def a_flip(rng: random.Random, said_bytes: int) -> Tamper:
    return flip(rng.randrange(said_bytes), rng.randrange(8))


def a_patch(rng: random.Random, said_bytes: int) -> Tamper:
    return patch(rng.randrange(said_bytes - 4), rng.choice(VALUES))


def a_cut(rng: random.Random, said_bytes: int) -> Tamper:
    return CutOff(rng.randrange(said_bytes), rng.choice(list(End)))


def a_record(rng: random.Random, said_bytes: int) -> Tamper:
    number = rng.randrange(12)
    edits = (duplicate(number), replay(number, number + 1 + rng.randrange(4)), swap(number))
    return Records(rng.choice(edits))


def reports_of(lab: Lab, job: Job) -> list[list[str | None]]:
    """What became of each world, by rank: nobody crashed, hung or computed anything wrong."""
    deadline = time.monotonic() + LIMIT_S
    while any(rank.poll() is None for rank in job.ranks):
        statuses = [rank.poll() for rank in job.ranks]
        assert not any(statuses), f"exit statuses {statuses}\n{job.told()}"
        assert time.monotonic() < deadline, f"a rank hangs\n{job.told()}"
        time.sleep(0.005)
    assert not any(rank.poll() for rank in job.ranks), job.told()
    reports = [lab.read(f"report.{rank.number}", job) for rank in job.ranks]
    texts = [text for report in reports for text in report if text is not None]
    assert [text for text in texts if text.startswith("wrong")] == []
    return reports


def attacked(
    lab: Lab,
    middle: ManInTheMiddle,
    kinds: Sequence[Kind],
    attack: Attack,
    worlds: int,
    **options: object,
) -> tuple[list[int], list[int]]:
    """The worlds that something happened to, and of these the ones that ended with an error."""
    plan = Plan(middle, kinds, attack)
    job = lab.start_worker((1, 1), "many_worlds.py", str(1 + worlds), "2", **options)
    reports = reports_of(lab, job)
    struck = plan.struck()
    failed = [world for world, ends in enumerate(zip(*reports, strict=True)) if any(ends)]
    print(f"{len(struck)} of {worlds} worlds attacked, {len(failed)} failed")
    assert len(struck) >= worlds / 2
    assert set(failed) <= set(struck)
    return struck, failed


def test_nothing_changes_without_an_attack(lab: Lab, middle: ManInTheMiddle) -> None:
    """And all that goes between the hosts is seen, and known for what it is."""
    job = lab.start_worker((1, 1), "many_worlds.py", "3", "2")
    assert reports_of(lab, job) == [[None] * 3] * 2
    for kind, count in {Kind.STORE: 1, Kind.CONTROL: 3, Kind.NEWS: 3, Kind.DATA: 3}.items():
        assert len(middle.of_kind(kind)) >= count
    for connection in middle.connections:
        assert all(connection.said_bytes(speaker) > 0 for speaker in Speaker)
    assert middle.of_kind(Kind.UNKNOWN, Kind.LINK) == []


@pytest.mark.parametrize(
    ("attack", "share"), [(a_flip, 1.0), (a_patch, 0.5), (a_cut, 0.5), (a_record, 0.5)]
)
def test_control_and_news(lab: Lab, middle: ManInTheMiddle, attack: Attack, share: float) -> None:
    attacked(lab, middle, CONTROL, attack, int(FLIPS * share))
