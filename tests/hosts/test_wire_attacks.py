"""An attacker on the path between two hosts alters, repeats and cuts what they send.

An attacked job goes on or ends with a named error: no rank crashes, hangs or computes a wrong
result. HOROVOD_TEST_FLIPS is the number of attacks of each kind; the default is a few.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import cloudpickle
import pytest
from lab import Lab, wait_until
from man_in_the_middle import CABLING, HANDSHAKE_BYTES, Connection, Kind, ManInTheMiddle, Speaker
from ranks import Job
from tampering import (
    CutOff,
    End,
    Messages,
    Replaced,
    Slow,
    Tamper,
    come_back,
    duplicate,
    flip,
    patch,
    replay,
    swap,
)

FLIPS = int(os.environ.get("HOROVOD_TEST_FLIPS", "0"))
LIMIT_S = 500 + 4 * FLIPS
pytestmark = pytest.mark.timeout(LIMIT_S + 60)
CONTROL = (Kind.CONTROL, Kind.NEWS)
CUT_S = 2.0
START_S = {"HOROVOD_START_TIMEOUT": "60"}
VALUES = (2**30, -(2**30), 2_000_000_000, 100_000)
# An attack on a world, from a generator and the most bytes that one side sent.
Attack = Callable[[random.Random, int], Tamper]
Fault = tuple[Speaker, Callable[[], Tamper]]


@pytest.fixture
def middle(lab: Lab) -> Iterator[ManInTheMiddle]:
    """Passes all traffic between host 0 and host 1."""
    lab.open(CABLING)
    with ManInTheMiddle(lab.hosts[:2], lab.hosts[2]) as middle:
        yield middle


def times(a_few: int) -> int:
    """The number of attacks in this test."""
    return FLIPS or a_few


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
        """The worlds that were attacked."""
        made = self._middle.of_kind(*self._kinds)
        return sorted({connection.world for connection in made if connection.was_struck})

    def _tamper(self, connection: Connection, speaker: Speaker) -> Tamper | None:
        world = connection.world
        if connection.kind not in self._kinds or world == 0:
            return None
        rng = random.Random(world)
        if (rng.choice(self._kinds), rng.choice(list(Speaker))) != (connection.kind, speaker):
            return None
        calm = [each for each in self._middle.of_kind(connection.kind) if each.world == 0]
        return self._attack(rng, max(each.sent_bytes(speaker) for each in calm))


def a_flip(rng: random.Random, sent_bytes: int) -> Tamper:
    return flip(rng.randrange(sent_bytes), rng.randrange(8))


def a_patch(rng: random.Random, sent_bytes: int) -> Tamper:
    return patch(rng.randrange(sent_bytes - 4), rng.choice(VALUES))


def a_cut(rng: random.Random, sent_bytes: int) -> Tamper:
    return CutOff(rng.randrange(sent_bytes), rng.choice(list(End)))


def a_message(rng: random.Random, sent_bytes: int) -> Tamper:
    number = rng.randrange(8)
    later = number + 1 + rng.randrange(4)
    return Messages(
        rng.choice([duplicate(number), replay(number, later), come_back(number, later)])
    )


def reports_of(lab: Lab, job: Job) -> list[list[str | None]]:
    """The end of each world, by rank: no crash, no hang, no wrong result."""
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


def start_worlds(lab: Lab, worlds: int, rounds: int, setting: Mapping[str, str]) -> Job:
    # Rank 0 gets the others' timeline events as news.
    timeline = {0: {"HOROVOD_TIMELINE": str(lab.notes / "timeline.json")}}
    words = ("many_worlds.py", str(worlds), str(rounds))
    return lab.start_worker((1, 1), *words, environment=setting, of_rank=timeline)


def attacked(
    lab: Lab,
    middle: ManInTheMiddle,
    kinds: Sequence[Kind],
    attack: Attack,
    worlds: int,
    *,
    protection: str = "control",
) -> tuple[list[int], list[int]]:
    """The worlds that something happened to, and those that ended with an error.

    Something happened to most of them, and nothing fails without a reason.
    """
    plan = Plan(middle, kinds, attack)
    job = start_worlds(lab, 1 + worlds, 2, {"HOROVOD_LINK_PROTECTION": protection})
    reports = reports_of(lab, job)
    struck = plan.struck()
    failed = [world for world, ends in enumerate(zip(*reports, strict=True)) if any(ends)]
    print(f"{worlds} worlds, {len(struck)} attacked, {len(failed)} ended with an error")
    assert len(struck) >= worlds / 2
    assert set(failed) <= set(struck)
    return struck, failed


def test_nothing_changes_without_an_attack(lab: Lab, middle: ManInTheMiddle) -> None:
    """All connections between the hosts are seen and recognised."""
    job = lab.start_worker((1, 1), "many_worlds.py", "3", "2")
    assert reports_of(lab, job) == [[None] * 3] * 2
    for kind, count in {Kind.STORE: 1, Kind.CONTROL: 3, Kind.NEWS: 3, Kind.DATA: 3}.items():
        assert len(middle.of_kind(kind)) >= count
    for connection in middle.connections:
        assert all(connection.sent_bytes(speaker) > 0 for speaker in Speaker)
    assert middle.of_kind(Kind.UNKNOWN, Kind.LINK) == []


@pytest.mark.parametrize(
    ("attack", "a_few"), [(a_flip, 40), (a_patch, 12), (a_cut, 6), (a_message, 12)]
)
def test_control_and_news(lab: Lab, middle: ManInTheMiddle, attack: Attack, a_few: int) -> None:
    """Each change on a control link ends its world; news may arrive when a world ends anyway."""
    _, failed = attacked(lab, middle, CONTROL, attack, times(a_few))
    if attack in (a_flip, a_patch):
        control = middle.of_kind(Kind.CONTROL)
        assert {each.world for each in control if each.was_struck} <= set(failed)


def test_the_order_of_news(lab: Lab, middle: ManInTheMiddle) -> None:
    """Messages of rank 1 for the timeline arrive in another order."""

    def swapped(connection: Connection, speaker: Speaker) -> Tamper | None:
        is_told = connection.kind is Kind.NEWS and speaker is Speaker.DIALER
        return Messages(swap(1)) if is_told and connection.world > 0 else None

    middle.afterwards = swapped
    (calm, *first), (_, *second) = reports_of(lab, start_worlds(lab, 3, 60, {}))
    assert calm is None
    assert [connection.was_struck for connection in middle.of_kind(Kind.NEWS)] == [
        False,
        True,
        True,
    ]
    for text in (*first, *second):
        assert text is not None
        assert "news link" in text


class HandshakePlan:
    """Connections have one of these faults in their handshakes; each fault happens once.

    ``after``: connections without a fault before the first one. ``every``: 2 for every second one.
    """

    def __init__(
        self, middle: ManInTheMiddle, faults: Sequence[Fault], *, after: int, every: int = 2
    ) -> None:
        self._left = list(faults)
        self._after = after
        self._every = every
        self._now: Fault | None = None
        middle.at_start = self._tamper

    @property
    def is_used_up(self) -> bool:
        return not self._left

    def _tamper(self, connection: Connection, speaker: Speaker) -> Tamper | None:
        if speaker is Speaker.DIALER:  # called first
            index = connection.index - self._after
            is_due = index >= 0 and index % self._every == 0 and bool(self._left)
            self._now = self._left.pop(0) if is_due else None
        return self._now[1]() if self._now is not None and self._now[0] is speaker else None


def faults_at(offset: int) -> list[Callable[[], Tamper]]:
    return [
        partial(flip, offset, offset % 8),
        partial(CutOff, offset, End.CLOSE),
        partial(CutOff, offset, End.RESET),
    ]


def faults_in(kind: Kind, most: int) -> list[Fault]:
    """A sample of the faults in these handshakes, even over messages and kinds."""
    faults = [
        (speaker, fault)
        for speaker, count in HANDSHAKE_BYTES[kind].items()
        for offset in range(count)
        for fault in faults_at(offset)
    ]
    return random.Random(most).sample(faults, min(most, len(faults)))


def assert_whole(lab: Lab, middle: ManInTheMiddle, faults: Sequence[Fault]) -> None:
    """Every world connects and computes, whatever fault its handshakes have."""
    plan = HandshakePlan(middle, faults, after=1)  # the store
    worlds = len(faults) // 2 + 1  # each of them has two or more
    job = lab.start_worker((1, 1), "many_worlds.py", str(worlds), "1", environment=START_S)
    assert reports_of(lab, job) == [[None] * worlds] * 2
    assert plan.is_used_up


def test_handshakes_of_links(lab: Lab, middle: ManInTheMiddle) -> None:
    """Ranks dial again, and the world is complete."""
    assert_whole(lab, middle, faults_in(Kind.LINK, times(12)))


def test_the_last_bytes_of_a_handshake(lab: Lab, middle: ManInTheMiddle) -> None:
    """If it is lost, the two sides disagree for a moment about whether they are connected."""
    faults = [
        (speaker, fault)
        for speaker, count in HANDSHAKE_BYTES[Kind.LINK].items()
        for fault in faults_at(count - 1)
    ]
    assert_whole(lab, middle, faults)


@pytest.mark.parametrize("speaker", Speaker)
def test_the_choice_of_a_connection_that_is_dialled_again(
    lab: Lab, middle: ManInTheMiddle, speaker: Speaker
) -> None:
    """TAKE or its answer is altered or lost. The first connections had no answer to the hello."""
    links = 3  # of the world: control, data and news
    last = HANDSHAKE_BYTES[Kind.LINK][Speaker.LISTENER] - 1
    taking = HANDSHAKE_BYTES[Kind.LINK][speaker]
    faults: list[Fault] = [(Speaker.LISTENER, partial(CutOff, last, End.RESET))] * links
    faults += [(speaker, fault) for fault in faults_at(taking)]
    plan = HandshakePlan(middle, faults, after=1, every=1)
    job = lab.start_worker((1, 1), "many_worlds.py", "2", "1", environment=START_S)
    assert reports_of(lab, job) == [[None] * 2] * 2
    assert plan.is_used_up


def test_handshakes_with_the_store(lab: Lab, middle: ManInTheMiddle) -> None:
    """Clients dial again."""
    faults = faults_in(Kind.STORE, times(30))
    plan = HandshakePlan(middle, faults, after=0)
    job = lab.start_worker((0, 1), "store_visitor.py", str(len(faults)), "1")
    job.check(LIMIT_S)
    assert plan.is_used_up
    assert lab.read("visits", job) == [None] * len(faults)


def test_frames_of_the_store(lab: Lab, middle: ManInTheMiddle) -> None:
    """A flipped bit after the handshake is noticed, and the client asks once more.

    Unless it stands in a request's length: then the store waits for the rest, and the client ends.
    """
    rng = random.Random(1)
    visits = times(40)

    def every_second(connection: Connection, speaker: Speaker) -> Tamper | None:
        is_due = connection.index % 2 == 0 and connection.index // 2 % 2 == speaker
        return flip(rng.randrange(400), rng.randrange(8)) if is_due else None

    middle.afterwards = every_second
    job = lab.start_worker((0, 1), "store_visitor.py", str(visits), "8")
    job.check(LIMIT_S)
    assert sum(connection.was_struck for connection in middle.connections) >= visits / 4
    ends = Counter(lab.read("visits", job))
    assert ends[None] >= visits * 0.9
    assert all(end is None or "does not answer" in end for end in ends), ends


@pytest.mark.parametrize(("protection", "a_few"), [("integrity", 12), ("encrypted", 6)])
def test_flipped_bits_on_data_links(
    lab: Lab, middle: ManInTheMiddle, protection: str, a_few: int
) -> None:
    """Each of them ends its world with the reason."""
    struck, failed = attacked(
        lab, middle, (Kind.DATA,), a_flip, times(a_few), protection=protection
    )
    assert failed == struck


def test_cut_data_links(lab: Lab, middle: ManInTheMiddle) -> None:
    struck, failed = attacked(lab, middle, (Kind.DATA,), a_cut, times(3))
    assert failed == struck


class _Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._path),)


def test_replaced_pickles_are_not_loaded(lab: Lab, middle: ManInTheMiddle, tmp_path: Path) -> None:
    """The same in elastic states; both ranks get the error."""
    trap = tmp_path / "trap"
    text = "x" * 600
    old, new = cloudpickle.dumps({"text": text}), cloudpickle.dumps(_Trap(trap))
    new += bytes(len(old) - len(new))  # bytes after the end of a pickle are not read

    def replace(connection: Connection, speaker: Speaker) -> Tamper | None:
        return Replaced(old, new) if connection.kind is Kind.DATA else None

    middle.afterwards = replace
    job = lab.start_worker((1, 1), "objects_come.py", text)
    assert job.wait(LIMIT_S) == [0, 0], job.told()
    assert all(connection.was_struck for connection in middle.of_kind(Kind.DATA))
    assert not trap.exists()
    first, second = (lab.read(f"report.{rank}", job) for rank in range(2))
    for way in ("broadcast", "gather", "state"):
        assert first[way]["error"] is not None, (way, job.told())
        assert second[way]["error"] is not None, (way, job.told())
        assert not second[way]["is_right"]


def test_a_slow_path(lab: Lab, middle: ManInTheMiddle) -> None:
    """Every segment between the hosts is 0.2 s late; results are right and no rank gives up."""
    middle.afterwards = lambda connection, speaker: (
        None if connection.kind is Kind.STORE else Slow(0.2)
    )
    job = lab.start_worker((1, 1), "many_worlds.py", "1", "1")
    assert reports_of(lab, job) == [[None], [None]]
    assert all(connection.was_struck for connection in middle.of_kind(Kind.CONTROL, Kind.DATA))


def test_a_cut_that_heals_in_time(lab: Lab) -> None:
    """Nothing reaches the other host for some seconds: a pause without an error."""
    network = lab.open(2)
    limit = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "60"}
    job = lab.start_worker((1, 1), "until_enough.py", environment=limit)
    lab.read_from(range(2), "ready", job)
    network.disconnect(lab.hosts[1])
    cut = time.monotonic()
    wait_until(lambda: time.monotonic() - cut > CUT_S, "time stands still")
    network.connect(lab.hosts[1])
    lab.leave("enough")
    for report in lab.read_from(range(2), "report", job).values():
        assert report == {"error": None, "later": None}
    job.check(LIMIT_S)


def test_a_cut_that_heals_too_late(lab: Lab) -> None:
    """By then the other host has been given up, by name, and does not come back."""
    network = lab.open(2)
    limit = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "10"}
    job = lab.start_worker((1, 1), "until_enough.py", environment=limit)
    lab.read_from(range(2), "ready", job)
    network.disconnect(lab.hosts[1])
    reports = lab.read_from(range(2), "report", job)
    network.connect(lab.hosts[1])
    for rank, report in reports.items():
        other = f"rank {1 - rank} (pid "
        for error in (report["error"], report["later"]):
            assert error["type"] == "PeerLostError", reports
            assert other in error["text"], reports
            assert f"on host{1 - rank}" in error["text"], reports
    lab.leave("leave")
    job.check(LIMIT_S)
