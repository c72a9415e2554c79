"""The checks of chaos runs on invented histories, right and wrong ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from histories import Event
from verdicts import MEMORY_BYTES, batches_in_weights, verdicts

SAMPLES = 12


class Story:
    """Writes the histories of workers with batches of two samples; each step is saved."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.left = list(range(SAMPLES))
        self.step = 0

    def add(self, process: str, kind: str, **facts: object) -> None:
        time = float(len(self.events))
        self.events.append(Event(process, kind, time, **{"step": self.step, **facts}))

    def enter(self, world: str, *processes: str, start: bool = True) -> None:
        for kind in ("enter", "sync", "start"):
            for rank, process in enumerate(processes):
                place = {"world": world, "rank": rank, "size": len(processes)}
                resources: dict[str, object] = {"descriptors": ("pipe", "socket"), "threads": 2}
                self.add(process, kind, **place, digest=f"d{self.step}", **resources)

    def batch(self, world: str, *processes: str, dies: str = "", saves: bool = True) -> None:
        self.step += 1
        size = len(processes)
        shares = [self.left[2 * rank : 2 * rank + 2] for rank in range(size)]
        del self.left[: 2 * size]
        places = [{"world": world, "rank": rank, "size": size} for rank in range(size)]
        for process, place, share in zip(processes, places, shares, strict=True):
            self.add(process, "begin", **place, samples=tuple(share))
        for process, place in zip(processes, places, strict=True):
            if process != dies:
                self.add(process, "batch", **place, loss=0.5)
        for process, place in zip(processes, places, strict=True):
            if process != dies and saves:
                self.add(process, "save", **place, digest=f"d{self.step}")

    def end(self, *processes: str) -> None:
        for process in processes:
            self.add(process, "end", world="last", digest=f"d{self.step}")


def one_death() -> Story:
    """Of three workers b dies in the second batch; it was not saved and is done again."""
    story = Story()
    story.enter("w1", "a", "b", "c")
    story.batch("w1", "a", "b", "c")
    left = list(story.left)
    story.batch("w1", "a", "b", "c", dies="b", saves=False)
    story.left, story.step = left, 1
    for process in ("a", "c"):
        story.add(process, "restore", digest="d1")
    story.enter("w2", "c", "a")
    story.batch("w2", "c", "a")
    story.batch("w2", "c", "a")
    story.end("a", "c")
    return story


def test_a_batch_that_is_done_again_counts_once():
    story = one_death()
    assert verdicts(story.events, SAMPLES) == []
    batches, _ = batches_in_weights(story.events)
    assert [batch.samples for batch in batches] == [
        ((0, 1), (2, 3), (4, 5)),
        ((6, 7), (8, 9)),
        ((10, 11), ()),
    ]


def test_a_rank_that_died_after_its_share_has_done_it():
    story = Story()
    story.enter("w1", "a", "b", "c")
    story.batch("w1", "a", "b", "c", dies="c")
    story.enter("w2", "a", "b")
    story.batch("w2", "a", "b")
    story.batch("w2", "a", "b")
    story.end("a", "b")
    assert verdicts(story.events, SAMPLES) == []
    assert batches_in_weights(story.events)[0][0].losses == (0.5, 0.5, None)


def changed(index: Callable[[Event], bool], **facts: object) -> Callable[[list[Event]], None]:
    """Change facts in the last event for which ``index`` holds."""

    def change(events: list[Event]) -> None:
        place = max(i for i, event in enumerate(events) if index(event))
        events[place] = replace(events[place], **facts)

    return change


def without(condition: Callable[[Event], bool]) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        events[:] = [event for event in events if not condition(event)]

    return change


def is_of(process: str, kind: str) -> Callable[[Event], bool]:
    return lambda event: (event.process, event.kind) == (process, kind)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (changed(is_of("c", "begin"), samples=()), r"samples \[10, 11\] are not in the weights"),
        (changed(is_of("a", "begin"), samples=(1, 2, 3)), "3 samples too many, 1 may be"),
        (without(lambda e: e.process == "a" and e.kind == "begin"), r"ranks \[0\] took no part"),
        (changed(is_of("a", "save"), digest="x"), "save of step 3 .* weights differ"),
        (changed(is_of("a", "end"), digest="x"), "end of step 3 .* weights differ"),
        (changed(is_of("a", "start"), digest="x"), "start of step 1 .* weights differ"),
        (changed(is_of("c", "restore"), step=2), "c: restore at step 2 .* expected step 1"),
        (without(is_of("c", "restore")), "a: sync at step 1 .* expected step 2"),
        (changed(is_of("c", "batch"), step=4), "c: batch at step 4 .* follows step 2"),
        (changed(lambda e: e.kind == "end" and e.process == "c", step=1), "end at step 1"),
        (without(is_of("c", "end")), None),
        (without(lambda e: e.kind == "end"), "0 different final states"),
    ],
)
def test_what_is_wrong_is_found(change: Callable[[list[Event]], None], text: str | None):
    events = one_death().events
    change(events)
    found = verdicts(events, SAMPLES)
    if text is None:
        assert found == []
    else:
        assert_told(found, text)


def assert_told(found: list[str], pattern: str) -> None:
    assert [text for text in found if re.search(pattern, text)], found


def test_training_that_began_anew_is_found():
    story = Story()
    story.enter("w1", "a", "b")
    story.batch("w1", "a", "b")
    story.left, story.step = list(range(SAMPLES)), 0
    story.enter("w2", "c", "d", "e")
    story.batch("w2", "c", "d", "e")
    story.batch("w2", "c", "d", "e")
    story.end("c", "d", "e")
    (problem,) = verdicts(story.events, SAMPLES)
    assert "rank 0 of a later world has no state" in problem


def test_a_first_world_that_ended_before_its_ranks_were_equal_loses_nothing():
    story = Story()
    for process, rank in (("a", 0), ("b", 1)):
        story.add(process, "enter", world="w1", rank=rank, size=2)
    story.enter("w2", "a", "b")
    for _ in range(3):
        story.batch("w2", "a", "b")
    story.end("a", "b")
    assert verdicts(story.events, SAMPLES) == []


def test_an_older_state_that_replaces_a_newer_one_is_found():
    story = Story()
    story.enter("w1", "a", "b", "c")
    story.batch("w1", "a", "b", "c", dies="a")
    story.left, story.step = list(range(SAMPLES)), 0
    story.add("a", "restore")
    story.enter("w2", "a", "b", "c")
    story.batch("w2", "a", "b", "c")
    story.batch("w2", "a", "b", "c")
    story.end("a", "b", "c")
    problems = verdicts(story.events, SAMPLES)
    assert (
        "b: sync at step 0 in world 'w2': had saved step 1, newer than rank 0's state" in problems
    )


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (
            {"descriptors": ("pipe", "socket", "socket")},
            r"a: descriptors in its worlds of 2: 2, then 3: gone \[\], new \['socket'\]",
        ),
        ({"threads": 3}, r"a: threads in its worlds of 2: \[2, 3\]"),
        ({"resident_bytes": MEMORY_BYTES + (1 << 20)}, "a: 25 MiB more after 4 worlds"),
    ],
)
def test_leaks_are_found(facts: dict[str, object], text: str):
    story = Story()
    for world in ("w1", "w2", "w3", "w4"):
        story.enter(world, *(("a", "b") if world in ("w1", "w4") else ("a", "b", "c")))
    for _ in range(3):
        story.batch("w4", "a", "b")
    story.end("a", "b")
    assert verdicts(story.events, SAMPLES) == []
    changed(is_of("a", "start"), **facts)(story.events)
    assert_told(verdicts(story.events, SAMPLES), text)
