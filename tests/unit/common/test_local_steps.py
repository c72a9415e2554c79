"""When fragments are sent and merged, and which arguments are refused."""

from __future__ import annotations

import itertools
import random

import pytest

from horovod.core.local_steps import LocalSteps, make_local_steps, mixed, parts_of

USUAL = {
    "sync_every": 10,
    "outer_lr": 0.7,
    "outer_momentum": 0.9,
    "nesterov": True,
    "fragments": 1,
    "overlap": 0,
    "merge_weight": None,
}


def make(name=None, **changes) -> LocalSteps:
    sync_every, *others = {**USUAL, **changes}.values()
    return make_local_steps("DiLoCo", name, sync_every, tuple(others[:3]), tuple(others[3:]))


@pytest.mark.parametrize("fragments", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("overlap", [0, 1, 9])
def test_each_fragment_is_sent_once_in_sync_every_steps(fragments, overlap):
    rules = make(fragments=fragments, overlap=overlap)
    sent = [(step, k) for step in range(1, 41) for k in rules.sent_after(step)]
    for k in range(fragments):
        steps = [step for step, number in sent if number == k]
        assert len(steps) == 4
        assert {b - a for a, b in itertools.pairwise(steps)} == {10}
    assert [k for _, k in sent] == list(range(fragments)) * 4
    assert sent[fragments - 1] == (10, fragments - 1)
    merged = [(step, k) for step in range(1, 41 + overlap) for k in rules.merged_after(step)]
    assert merged[: len(sent)] == [(step + overlap, k) for step, k in sent]


def test_parts_are_about_equal():
    assert parts_of([1, 1, 1, 1], 2) == [slice(0, 2), slice(2, 4)]
    assert parts_of([10, 1, 1, 1], 3) == [slice(0, 1), slice(1, 2), slice(2, 4)]
    assert parts_of([0, 0, 0], 3) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    numbers = random.Random(3)
    for _ in range(500):
        sizes = [numbers.randint(0, 50) for _ in range(numbers.randint(1, 12))]
        count = numbers.randint(1, len(sizes))
        parts = parts_of(sizes, count)
        found = [index for part in parts for index in range(part.start, part.stop)]
        assert found == list(range(len(sizes)))
        assert len(parts) == count
        assert all(part.stop > part.start for part in parts)


def test_defaults_that_depend_on_others():
    assert make().merge_weight == 1
    assert make(overlap=2).merge_weight == 0.5
    assert make(overlap=2, merge_weight=1).merge_weight == 1
    assert make().name_of(2) == "DiLoCo.fragment.2"
    assert make("actor").name_of(0) == "actor.fragment.0"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sync_every": 0}, "DiLoCo: sync_every must be a number of at least 1, found 0"),
        ({"sync_every": 2.0}, r"sync_every must be .*, found 2\.0"),
        ({"sync_every": True}, "sync_every must be .*, found True"),
        ({"fragments": 0}, "fragments must be in 1 to 10 with sync_every=10, found 0"),
        ({"fragments": 11}, "fragments must be in 1 to 10 with sync_every=10, found 11"),
        ({"overlap": 10}, "overlap must be in 0 to 9 with sync_every=10, found 10"),
        ({"overlap": -1}, "overlap must be in 0 to 9 with sync_every=10, found -1"),
        ({"outer_lr": 0}, "outer_lr must be a number > 0, found 0"),
        ({"outer_lr": float("nan")}, "outer_lr must be a number > 0, found nan"),
        ({"outer_momentum": 1.0}, r"outer_momentum must be in \[0, 1\), found 1\.0"),
        ({"merge_weight": 0}, r"merge_weight must be in \(0, 1\], found 0"),
        ({"merge_weight": "half"}, r"merge_weight must be in \(0, 1\], found 'half'"),
        ({"nesterov": 1}, "nesterov must be True or False, found 1"),
    ],
)
def test_a_wrong_argument_is_named(changes, text):
    with pytest.raises(ValueError, match=text):
        make(**changes)


def test_an_empty_name():
    with pytest.raises(ValueError, match="name must be a text, found ''"):
        make("")


def test_outer_steps_are_those_of_sgd():
    rules = make(outer_lr=0.5, outer_momentum=0.5)
    assert rules.step_outer(10.0, 2.0, 4.0) == (10 - 0.5 * (4 + 0.5 * 5), 5)
    rules = make(outer_lr=0.5, outer_momentum=0.5, nesterov=False)
    assert rules.step_outer(10.0, 2.0, 4.0) == (10 - 0.5 * 5, 5)
    assert make(outer_lr=1, outer_momentum=0.0).step_outer(10.0, None, 4.0) == (6, None)
    assert mixed(8.0, 4.0, 0.25) == 5
    assert mixed(8.0, None, 1) == 8
