"""broadcast_object and allgather_object with odd objects."""

from __future__ import annotations

import threading

import pytest
import torch

import horovod.torch as hvd


class Point:
    """Compared by value; pickled by value because tests are not importable elsewhere."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.x == other.x

    __hash__ = None


OBJECTS = [
    None,
    0,
    "text €",
    b"",
    [],
    {"nested": [1, (2.5, {3})], None: True},
    list(range(100_000)),
]


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: type(obj).__name__)
def test_broadcast_object(obj):
    root = hvd.size() - 1
    received = hvd.broadcast_object(obj if hvd.rank() == root else None, root, "obj")
    assert received == obj


def test_broadcast_returns_the_roots_own_object():
    obj = object()
    received = hvd.broadcast_object(obj, 0)
    assert (received is obj) == (hvd.rank() == 0)


def test_broadcast_functions_classes_and_tensors():
    offset = 3
    sent = (lambda x: x + offset, Point(4), torch.arange(3))
    function, point, tensor = hvd.broadcast_object(sent if hvd.rank() == 0 else None, 0, "sent")
    assert function(1) == 4
    assert point.x == 4
    assert torch.equal(tensor, torch.arange(3))


def test_allgather_objects_of_different_size_and_type():
    def obj_of(rank):
        return [None, "x" * 1000, {"rank": rank}, Ellipsis][rank % 4]

    gathered = hvd.allgather_object(obj_of(hvd.rank()), "objects")
    assert gathered == [obj_of(rank) for rank in range(hvd.size())]


def test_object_that_does_not_pickle_fails_everywhere():
    if hvd.size() == 1:
        pytest.skip("a world of one pickles nothing")
    bad = threading.Lock() if hvd.rank() == 0 else None
    with pytest.raises(RuntimeError, match="could not pickle"):
        hvd.broadcast_object(bad, 0, "bad")
    with pytest.raises(RuntimeError, match="rank 0 could not pickle"):
        hvd.allgather_object(bad, "bad")
    assert hvd.allgather_object(hvd.rank(), "good") == list(range(hvd.size()))


def test_a_set_of_one_is_for_its_member_only(process_sets):
    for process_set in process_sets:
        if process_set.size() == 1 and process_set.included():
            assert hvd.allgather_object("mine", "alone", process_set) == ["mine"]
        elif process_set.size() == 1:
            with pytest.raises(ValueError, match="not a member"):
                hvd.allgather_object("mine", "alone", process_set)
