"""The registry of process sets: adding and removing them, what it costs, who may do what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sets

import horovod.numpy as hvd
from horovod.core.process_sets import Registry, ids_and_ranks
from horovod.errors import MismatchError


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    hvd.init()
    assert ids_and_ranks() == {0: list(range(hvd.size()))}
    assert hvd.allreduce(np.ones(2), op=hvd.Sum, name="afterwards")[0] == hvd.size()


@pytest.fixture
def several_ranks() -> None:
    if hvd.size() == 1:
        pytest.skip("a world of one has no proper subset")


def leave_dynamic_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    hvd.shutdown()
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "0")


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def test_what_a_set_says_of_itself(several_ranks):
    entry = hvd.ProcessSet([hvd.size() - 1])
    assert (entry.process_set_id, entry.size(), entry.rank()) == (None, None, None)
    assert hvd.add_process_set(entry) is entry
    assert entry.process_set_id == 1
    assert entry.size() == 1
    assert entry.included() == (hvd.rank() == hvd.size() - 1)
    if entry.included():
        assert entry.rank() == 0
    else:
        with pytest.raises(ValueError, match="not part of provided process set"):
            entry.rank()
    assert str(entry) == f"ProcessSet(process_set_id=1, ranks=[{hvd.size() - 1}], mpi_comm=None)"
    assert ids_and_ranks() == {0: list(range(hvd.size())), 1: [hvd.size() - 1]}
    assert hvd.remove_process_set(entry) is True
    assert (entry.process_set_id, entry.size(), entry.rank()) == (None, None, None)
    assert hvd.remove_process_set(entry) is False
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert hvd.global_process_set.process_set_id == 0
    assert hvd.global_process_set.ranks == list(range(hvd.size()))


def test_ids_are_used_again(several_ranks):
    first, second = hvd.add_process_set([0]), hvd.add_process_set([hvd.size() - 1])
    assert (first.process_set_id, second.process_set_id) == (1, 2)
    assert hvd.remove_process_set(first)
    assert second.process_set_id == 2
    third = hvd.add_process_set([0])
    assert third.process_set_id == 1
    for entry in (third, second):
        if entry.included():
            assert hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=entry)[0] == 1
        assert hvd.remove_process_set(entry)


def test_ranks_in_any_order_and_of_any_integer_type(several_ranks):
    entry = hvd.add_process_set([int(rank) for rank in reversed(range(1, hvd.size()))])
    assert entry.ranks == list(range(1, hvd.size()))
    hvd.remove_process_set(entry)
    entry = hvd.add_process_set(hvd.ProcessSet(np.arange(1)))
    assert entry.ranks == [0]
    hvd.remove_process_set(entry)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda size: list(range(size)), "duplicate process set"),
        (lambda size: [size], "the world has ranks 0 to"),
        (lambda size: [-1], "the world has ranks 0 to"),
        (lambda size: [0, 0], "a rank twice"),
        (lambda size: [], "without ranks"),
    ],
)
def test_sets_that_cannot_be(make, text):
    for _ in range(2):
        with pytest.raises(ValueError, match=text):
            hvd.add_process_set(make(hvd.size()))
        with pytest.raises(ValueError, match=text):
            hvd.add_process_set(hvd.ProcessSet(make(hvd.size())))


def test_a_set_that_exists(several_ranks):
    with sets.registered([[0]]) as (_, entry):
        with pytest.raises(ValueError, match="duplicate process set"):
            hvd.add_process_set([0])
        with pytest.raises(ValueError, match="registered already"):
            hvd.add_process_set(entry)


def test_ranks_that_want_different_changes(several_ranks):
    with pytest.raises(MismatchError, match="add_process_set: rank 1 asked for"):
        hvd.add_process_set([min(hvd.rank(), 1)])
    with sets.registered([[0]]) as (_, entry):
        call, argument = (
            (hvd.remove_process_set, entry) if hvd.rank() == 0 else (hvd.add_process_set, [1])
        )
        with pytest.raises(MismatchError, match="asked for"):
            call(argument)
        assert entry.process_set_id == 1
        if entry.included():
            assert hvd.allreduce(np.ones(1), process_set=entry)[0] == 1


def test_one_ranks_problem_is_everybodys(several_ranks):
    last = hvd.size() - 1
    with pytest.raises(ValueError, match=f"rank {last} gave ranks"):
        hvd.add_process_set([99] if hvd.rank() == last else [0])


def test_a_set_with_operations_in_flight_stays():
    if hvd.size() < 3:
        pytest.skip("a proper subset of two ranks needs three")
    entry = hvd.add_process_set([0, 1])

    def start() -> int:
        return hvd.allreduce_async(np.ones(3), op=hvd.Sum, name="busy", process_set=entry)

    handle = start() if hvd.rank() == 0 else None
    with pytest.raises(ValueError, match="rank 0 has 1 pending operations on it"):
        hvd.remove_process_set(entry)
    if hvd.rank() == 1:
        handle = start()
    if handle is not None:
        assert hvd.synchronize(handle).tolist() == [2, 2, 2]
    assert hvd.remove_process_set(entry)


def test_static_worlds_refuse_changes(monkeypatch):
    leave_dynamic_mode(monkeypatch)
    hvd.init()
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS=1"):
        hvd.add_process_set([0])
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS=1"):
        hvd.remove_process_set(hvd.global_process_set)
    hvd.shutdown()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.add_process_set([0])


def test_sets_of_init(monkeypatch, several_ranks):
    given = [hvd.ProcessSet(ranks) for ranks in sets.overlapping(hvd.size())]
    leave_dynamic_mode(monkeypatch)
    for _ in range(3):
        hvd.init(process_sets=given)
        for number, entry in enumerate(given, 1):
            assert entry.process_set_id == number
            if entry.included():
                result = hvd.allreduce(np.full(3, hvd.rank()), op=hvd.Sum, process_set=entry)
                assert result.tolist() == [sum(entry.ranks)] * 3
        hvd.barrier()  # a rank that leaves ends the world for all
        hvd.shutdown()
        assert [entry.process_set_id for entry in given] == [None] * len(given)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda size: [[0], [0]], r"duplicate process set.*process_sets\[1\]"),
        (lambda size: [list(range(size))], r"duplicate process set.*process_sets\[0\]"),
        (lambda size: [[0], [size]], r"the world has ranks.*process_sets\[1\]"),
        (lambda size: [[-1]], r"the world has ranks.*process_sets\[0\]"),
        (lambda size: [[0], [size - 1, size - 1]], r"a rank twice.*process_sets\[1\]"),
        (lambda size: [[]], r"without ranks.*process_sets\[0\]"),
    ],
)
def test_sets_that_init_refuses(several_ranks, make, text):
    given = [hvd.ProcessSet(ranks) for ranks in make(hvd.size())]
    hvd.shutdown()
    with pytest.raises(ValueError, match=text):
        hvd.init(process_sets=given)
    assert not hvd.is_initialized()
    assert hvd.global_process_set.ranks is None


def test_equal_sets_cost_no_exchange(several_ranks, monkeypatch):
    if "HOROVOD_RANK" not in os.environ:
        pytest.skip("without a launcher's store the ranks wait for each other")
    given = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
    hvd.shutdown()
    with monkeypatch.context() as patch:
        patch.setattr(Registry, "_agreed", None)
        hvd.init(process_sets=given)
    assert [entry.process_set_id for entry in given] == [1, 2]
    hvd.barrier()
    hvd.shutdown()


def test_different_sets_on_different_ranks(several_ranks):
    given = [hvd.ProcessSet([0])] if hvd.rank() == 0 else []
    hvd.shutdown()
    with pytest.raises(ValueError, match="rank 1 asked for"):
        hvd.init(process_sets=given)
    assert not hvd.is_initialized()
    assert [entry.process_set_id for entry in given] == [None] * len(given)


def test_dynamic_mode_by_argument(monkeypatch):
    leave_dynamic_mode(monkeypatch)
    hvd.init(process_sets="Dynamic")
    assert hvd.remove_process_set(hvd.global_process_set) is False
    hvd.shutdown()
    with pytest.raises(ValueError, match="expected 'dynamic'"):
        hvd.init(process_sets="static")
    with pytest.raises(ValueError, match="expected ProcessSet objects"):
        hvd.init(process_sets=[[0]])


def test_two_hundred_sets_leave_nothing_behind(several_ranks):
    def use_sets(rounds: int) -> None:
        for _ in range(rounds):
            with sets.registered(sets.overlapping(hvd.size())) as entries:
                for entry in entries:
                    if entry.included():
                        array = np.ones(20_000)
                        assert hvd.allreduce(array, process_set=entry, name="use")[-1] == 1

    use_sets(5)
    before, descriptors = resident_kib(), len(os.listdir("/proc/self/fd"))
    threads = len(os.listdir("/proc/self/task"))
    use_sets(200 // len(sets.overlapping(hvd.size())))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert len(os.listdir("/proc/self/task")) == threads
    assert resident_kib() - before < 16 * 1024
