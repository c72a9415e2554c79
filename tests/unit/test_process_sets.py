"""Process sets in one process: what can be said of them without others, and a world of one."""

import json
import os

import numpy as np
import pytest

import horovod.numpy as hvd
from horovod.core.object_codes import ObjectCodes
from horovod.core.position import has_others, here
from horovod.core.process_sets import (
    Registry,
    close_registry,
    ids_and_ranks,
    open_registry,
    proposal_of,
)
from horovod.errors import InitError
from horovod.rendezvous.base.authentication import CODE_BYTES
from horovod.rendezvous.bootstrap import SetLinks

KEY = bytes(range(32))
MESSAGE_BYTES = 200
SEALS = object()  # of a connection


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    hvd.init()
    yield
    hvd.shutdown()


def test_ranks_are_sorted_numbers():
    assert hvd.ProcessSet([3, 0, 2]).ranks == [0, 2, 3]
    assert hvd.ProcessSet(range(2)).ranks == [0, 1]
    assert hvd.ProcessSet(np.array([1, 0])).ranks == [0, 1]
    assert all(type(rank) is int for rank in hvd.ProcessSet(np.arange(3)).ranks)
    assert hvd.ProcessSet({1, 0}).ranks == [0, 1]


@pytest.mark.parametrize("ranks", [3, None, "01", b"01", [0.5], ["0"], [True], [None], [[0]]])
def test_what_is_no_list_of_ranks(ranks):
    with pytest.raises(ValueError, match="ProcessSet: expected a list of ranks"):
        hvd.ProcessSet(ranks)


def test_equal_sets_are_the_same_proposal():
    sets = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([2])]
    same = [hvd.ProcessSet((1, 0)), hvd.ProcessSet([2])]
    assert proposal_of(sets, False, 3) == proposal_of(same, False, 3) != ""
    others = {
        proposal_of(sets, False, 3),
        proposal_of(sets, True, 3),
        proposal_of(sets[::-1], False, 3),
        proposal_of([], False, 3),
    }
    assert len(others) == 4


def test_sets_that_cannot_be_are_no_proposal():
    assert proposal_of([hvd.ProcessSet([2])], False, 2) == ""
    assert proposal_of([hvd.ProcessSet([0]), hvd.ProcessSet([0])], False, 2) == ""
    comm = hvd.ProcessSet([0])
    comm.ranks, comm.mpi_comm = None, object()
    assert proposal_of([comm], False, 2) == ""


def test_a_communicator_needs_mpi(monkeypatch):
    class Communicator:
        def Get_rank(self):  # noqa: N802 mpi4py's name
            return 0

        def Get_size(self):  # noqa: N802
            return 2

        def Get_group(self):  # noqa: N802
            raise AssertionError

    comm = Communicator()
    process_set = hvd.ProcessSet(comm)
    assert process_set.mpi_comm is comm
    assert process_set.ranks is None
    assert process_set.included() is None
    with pytest.raises(NotImplementedError, match="need a communicator as comm"):
        hvd.init(process_sets=[process_set])
    with pytest.raises(ValueError, match=r"takes one communicator.*process_sets"):
        hvd.init(comm=[comm, comm])
    monkeypatch.setenv("HOROVOD_RANK", "0")
    with pytest.raises(ValueError, match="MPI did not start the processes of this world"):
        hvd.init(comm=comm)


def test_init_takes_a_list_of_sets():
    with pytest.raises(ValueError, match="expected a list"):
        hvd.init(process_sets=hvd.ProcessSet([0]))
    assert not hvd.is_initialized()


def test_before_init():
    entry = hvd.ProcessSet([0])
    assert (entry.process_set_id, entry.size(), entry.rank()) == (None, None, None)
    assert repr(entry) == "ProcessSet(process_set_id=None, ranks=[0], mpi_comm=None)"
    for call in (
        entry.included,
        hvd.global_process_set.size,
        hvd.global_process_set.rank,
        ids_and_ranks,
        lambda: has_others(hvd.global_process_set),
        lambda: hvd.add_process_set([0]),
        lambda: hvd.remove_process_set(entry),
    ):
        with pytest.raises(ValueError, match="has not been initialized"):
            call()
    assert hvd.global_process_set.included() is None
    assert hvd.global_process_set.ranks is None


def test_the_global_set_of_a_world_of_one(world):
    everybody = hvd.global_process_set
    assert (everybody.process_set_id, everybody.ranks) == (0, [0])
    assert (everybody.size(), everybody.rank(), everybody.included()) == (1, 0, True)
    assert hvd.remove_process_set(everybody) is False
    assert ids_and_ranks() == {0: [0]}
    assert not has_others(everybody)
    hvd.barrier(everybody)


def test_a_set_that_is_not_registered_is_no_set_without_others(world):
    with pytest.raises(ValueError, match="is not registered"):
        has_others(hvd.ProcessSet([0]))


def test_a_newcomer_tries_alone_what_others_do_together(monkeypatch):
    monkeypatch.setattr(here, "provisional", object())
    assert not has_others(hvd.global_process_set)


def test_a_newcomer_calls_no_collective(monkeypatch):
    """The others are in their elastic function, and would take it for one of theirs."""
    monkeypatch.setattr(here, "world", None)
    monkeypatch.setattr(here, "provisional", object())
    text = r"^this process is about to join .* under hvd\.elastic\.run"
    with pytest.raises(ValueError, match=text):
        hvd.allreduce(np.ones(2))
    with pytest.raises(ValueError, match=text):
        hvd.broadcast_object(1)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([0], "duplicate process set: .0. is process set 0"),
        ([1], "the world has ranks 0 to 0"),
        ([-1], "the world has ranks 0 to 0"),
        ([0, 0], "a rank twice"),
        ([], "without ranks"),
    ],
)
def test_no_other_set_fits_a_world_of_one(world, ranks, text):
    with pytest.raises(ValueError, match=f"add_process_set: rank 0 gave .*{text}"):
        hvd.add_process_set(ranks)
    assert ids_and_ranks() == {0: [0]}


def test_a_set_of_another_world_is_not_registered(world):
    entry = hvd.ProcessSet([0])
    entry.process_set_id = 5
    with pytest.raises(ValueError, match="process set 5 is not registered"):
        entry.size()
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(np.ones(2), process_set=entry)
    assert hvd.remove_process_set(entry) is False


def test_without_dynamic_mode(monkeypatch):
    monkeypatch.delenv("HOROVOD_DYNAMIC_PROCESS_SETS", raising=False)
    hvd.init()
    try:
        with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS=1"):
            hvd.add_process_set([0])
    finally:
        hvd.shutdown()


class FakeEngine:
    """Rank 0's, in a world of two; rank 1 says the same, and of connecting what it is told to.

    Rank 1 announces more than it needs, since it hears the proposal later, and fills it up.
    """

    def __init__(self, other_problem):
        self.added = []
        self._other_problem = other_problem
        self._other = None  # its codes

    def gather(self, name, payload):
        if not name.endswith(".t"):
            self._other = ObjectCodes(KEY, "agreement", name, 0, 1, MESSAGE_BYTES)
            rows = payload + self._other.row
            self._other.receive(rows, range(2))
            return rows
        proposal, problem = json.loads(payload[:-CODE_BYTES])
        if name == "process_sets.connect.t":
            problem = self._other_problem or None
        message = json.dumps([proposal, problem]).encode().ljust(MESSAGE_BYTES)
        return payload + message + self._other.code(message)

    def add_process_set(self, number, ranks, carrier, control, data):
        self.added.append((number, ranks, carrier, control, data))


@pytest.mark.parametrize(
    ("own", "other", "text"),
    [
        ("", "", ""),
        (
            "b is far",
            "is far",
            r"rank 0 cannot connect process set \[1\]: b is far; rank 1 is far$",
        ),
        ("", "is far", r"add_process_set: rank 1 is far$"),
        ("b is far", "", r"rank 0 cannot connect process set \[1\]: b is far$"),
    ],
)
def test_a_set_is_connected_for_all_ranks_or_none(own, other, text):
    engine = FakeEngine(other)
    reader, writer = os.pipe()
    asked = []

    def connect_set(number, ranks):
        asked.append((number, ranks))
        if own:
            raise InitError(f"init: {own}")
        return SetLinks(control=((1, writer, SEALS),))

    open_registry(Registry(engine, KEY, 0, 2, True, connect_set), [])
    try:
        if text:
            with pytest.raises(InitError, match=text):
                hvd.add_process_set([1])
        else:
            assert hvd.add_process_set([1]).process_set_id == 1
    finally:
        close_registry()
    assert asked == [(1, [1])]
    assert engine.added == ([] if text else [(1, [1], None, [(1, writer, SEALS)], [])])
    os.close(reader)
    if text and not own:  # connected in vain
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.close(writer)
    else:
        os.close(writer)
