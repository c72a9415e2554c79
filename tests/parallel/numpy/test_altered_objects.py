"""Objects and agreements that are altered between the ranks: every rank has an error.

What changes on the way is changed here in the collectives under ``horovod.numpy.objects`` and
``horovod.core.process_sets``, on one rank, once they are done. Nothing of it runs or is agreed on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest

import horovod.numpy as hvd
from horovod.core import joining, world
from horovod.core.process_set import current_registry
from horovod.errors import AlteredObjectError
from horovod.numpy import objects


class Canary:
    """Unpickled, it says so."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return exec, ("import sys; sys.canary_has_run = True",)


def take_canary() -> bool:
    """Whether one has been unpickled here since this was last asked."""
    has_run = hasattr(sys, "canary_has_run")
    if has_run:
        del sys.canary_has_run
    return has_run


@pytest.fixture(autouse=True)
def own_world() -> Iterator[None]:
    """The world ends in the test, and another one follows."""
    if hvd.size() == 1:
        pytest.skip("a world of one has no way on which to be altered")
    if hvd.mpi_enabled():
        pytest.skip("over MPI no world follows one that failed in a collective")
    cloudpickle.loads(cloudpickle.dumps(Canary()))
    assert take_canary()
    yield
    hvd.shutdown()
    hvd.init()


def alter(monkeypatch: pytest.MonkeyPatch, collective: str, change: Callable[[Any], Any]) -> None:
    """On the last rank what ``collective`` brings goes through ``change``."""
    genuine = getattr(objects, collective)

    def altered(array: Any, *args: Any) -> Any:
        result = genuine(array, *args)
        changed = change(result.copy())
        result.setflags(write=True)
        result[...] = changed
        return result

    if hvd.rank() == hvd.size() - 1:
        monkeypatch.setattr(objects, collective, altered)


def flip(position: int) -> Callable[[Any], Any]:
    """A change of one bit of that byte."""

    def change(array: Any) -> Any:
        array.reshape(-1)[position] ^= 1
        return array

    return change


def in_place_of_the_object(data: Any) -> Any:
    """A pickle of the attacker's, as long as the one that it replaces."""
    pickled = cloudpickle.dumps(Canary())
    data[: len(pickled)] = np.frombuffer(pickled, np.uint8)
    return data


def run_on(action: Callable[[], Any]) -> None:
    """``action``, and what follows it."""
    action()
    hvd.barrier()


def expect_the_end(action: Callable[[], Any]) -> None:
    """The rank that got the altered object knows why; the others learn it at their next call."""
    if hvd.rank() == hvd.size() - 1:
        with pytest.raises(AlteredObjectError, match="its code is wrong") as told:
            action()
        assert told.value.sender in range(hvd.size())
    else:
        with pytest.raises(hvd.HorovodInternalError, match="its code is wrong"):
            run_on(action)
    assert not take_canary()


OBJECT = list(range(1000))


@pytest.mark.parametrize(
    ("collective", "change"),
    [
        ("broadcast_", in_place_of_the_object),
        ("broadcast_", flip(0)),
        ("broadcast_", flip(-1)),
        ("allgather", flip(4)),  # the length that the root announces: 2 ** 56 more
        ("allgather", flip(11)),
        ("allgather", flip(12)),
        ("allgather", flip(-1)),
    ],
)
def test_broadcast(
    monkeypatch: pytest.MonkeyPatch, collective: str, change: Callable[[Any], Any]
) -> None:
    alter(monkeypatch, collective, change)
    expect_the_end(lambda: hvd.broadcast_object(OBJECT, 0))


@pytest.mark.parametrize(
    "change", [in_place_of_the_object, flip(0), flip(4), flip(11), flip(-1)], ids=range(5)
)
@pytest.mark.parametrize("which", ["allgather_object.sz", "allgather_object.t"])
def test_allgather(
    monkeypatch: pytest.MonkeyPatch, which: str, change: Callable[[Any], Any]
) -> None:
    genuine = objects.allgather

    def altered(array: Any, name: str, *args: Any) -> Any:
        result = genuine(array, name, *args)
        if name != which:
            return result
        return change(result.copy().reshape(-1)).reshape(result.shape)

    if hvd.rank() == hvd.size() - 1:
        monkeypatch.setattr(objects, "allgather", altered)
    expect_the_end(lambda: hvd.allgather_object(OBJECT))


def test_an_object_that_was_sent_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def replay(data: Any) -> Any:
        seen.append(data)
        return seen[0]

    alter(monkeypatch, "broadcast_", replay)
    assert hvd.broadcast_object("first one", 0) == "first one"
    expect_the_end(lambda: hvd.broadcast_object("2nd, more", 0))


@pytest.mark.parametrize("position", [0, 7, 16, -1])
def test_numbers(monkeypatch: pytest.MonkeyPatch, position: int) -> None:
    numbers = (2**63 - 1, -(2**63)) if hvd.rank() == 0 else (0, 0)
    assert objects.broadcast_numbers(numbers) == (2**63 - 1, -(2**63))
    alter(monkeypatch, "broadcast_", flip(position))
    expect_the_end(lambda: objects.broadcast_numbers(numbers))


def test_a_new_world_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for _ in range(2):
        keys.append(world.object_key())
        assert hvd.allgather_object(keys[-1]) == [keys[-1]] * hvd.size()
        hvd.shutdown()
        hvd.init()
    assert keys[0] != keys[1]
    assert keys[0].hex() not in repr(world.current())
    assert repr(keys[0]) not in repr(world.current())


class AlteringEngine:
    """The engine, but what ``gather`` brings under this name goes through ``change``."""

    def __init__(self, engine: Any, name: str, change: Callable[[bytes], bytes]) -> None:
        self._engine = engine
        self._name = name
        self._change = change

    def gather(self, name: str, payload: bytes) -> bytes:
        gathered: bytes = self._engine.gather(name, payload)
        return self._change(gathered) if name == self._name else gathered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def flip_bytes(position: int) -> Callable[[bytes], bytes]:
    def change(gathered: bytes) -> bytes:
        altered = bytearray(gathered)
        altered[position] ^= 1
        return bytes(altered)

    return change


def another_set(gathered: bytes) -> bytes:
    """All ranks seem to want a set of another rank."""
    assert b"[0]" in gathered
    return gathered.replace(b"[0]", b"[1]")


@pytest.mark.parametrize(
    ("part", "change"),
    [
        (".t", another_set),
        (".t", flip_bytes(0)),
        (".t", flip_bytes(-1)),
        ("", flip_bytes(4)),  # the length that rank 0 announces: 2 ** 56 more
        ("", flip_bytes(11)),
        ("", flip_bytes(-1)),
    ],
)
def test_a_proposal_of_a_process_set(
    monkeypatch: pytest.MonkeyPatch, part: str, change: Callable[[bytes], bytes]
) -> None:
    registry = current_registry()
    engine = AlteringEngine(world.engine(), f"process_sets.change{part}", change)
    if hvd.rank() == hvd.size() - 1:
        monkeypatch.setattr(registry._agreement, "_engine", engine)
    expect_the_end(lambda: hvd.add_process_set([0]))


def test_a_proposal_of_init(monkeypatch: pytest.MonkeyPatch) -> None:
    is_last, genuine = hvd.rank() == hvd.size() - 1, joining.open_registry

    def altered(registry: Any, process_sets: Any, **options: Any) -> None:
        agreement = registry._agreement
        altering = AlteringEngine(agreement._engine, "process_sets.init.t", another_set)
        monkeypatch.setattr(agreement, "_engine", altering)
        genuine(registry, process_sets, **options)

    hvd.shutdown()
    monkeypatch.setattr(joining, "proposal_of", lambda *_: "")  # else there is nothing to say
    if is_last:
        monkeypatch.setattr(joining, "open_registry", altered)
        with pytest.raises(AlteredObjectError, match=r"agreement 'process_sets.init'.*rank 0"):
            hvd.init(process_sets=[hvd.ProcessSet([0])])
    else:
        with pytest.raises(hvd.HorovodInternalError, match="its code is wrong"):
            run_on(lambda: hvd.init(process_sets=[hvd.ProcessSet([0])]))
    monkeypatch.undo()


@pytest.mark.parametrize("root", [-1, 99, "0"])
def test_a_root_that_does_not_exist(root: Any) -> None:
    with pytest.raises(ValueError, match="root"):
        hvd.broadcast_object(1, root)
    assert hvd.broadcast_object("still there", 0) == "still there"
