"""Every call that cannot be right, and that the engine is usable after it."""

import numpy as np
import pytest

import horovod.numpy as hvd
from horovod.errors import MismatchError


@pytest.fixture(autouse=True)
def usable_afterwards():
    yield
    assert hvd.allreduce(np.ones(2), op=hvd.Sum, name="afterwards")[0] == hvd.size()


@pytest.fixture
def several_ranks():
    if hvd.size() == 1:
        pytest.skip("one rank cannot disagree")


def test_allgather_of_a_scalar_is_an_error_everywhere():
    with pytest.raises(MismatchError, match="rank-zero tensor"):
        hvd.allgather(np.ones(()))


def test_a_name_in_flight_is_refused(several_ranks):
    """Each kind of operation: the second is refused, the first is as if nothing had happened."""
    for start in (
        lambda: hvd.allreduce_async(np.ones(4), name="busy"),
        lambda: hvd.grouped_allreduce_async([np.ones(4)] * 2, name="busy"),
        lambda: hvd.allgather_async(np.ones(4), "busy"),
        lambda: hvd.grouped_allgather_async([np.ones(4)], "busy"),
        lambda: hvd.broadcast_async(np.ones(4), 0, "busy"),
        lambda: hvd.alltoall_async(np.ones(12), None, "busy"),
        lambda: hvd.reducescatter_async(np.ones(4), "busy"),
        lambda: hvd.grouped_reducescatter_async([np.ones(4)], "busy"),
    ):
        if hvd.rank() == 0:
            handle = start()
            with pytest.raises(ValueError, match=r"busy'.*still being processed"):
                start()
        hvd.barrier()
        if hvd.rank() != 0:
            handle = start()
        assert set(np.concatenate(arrays_of(hvd.synchronize(handle)))) == {1.0}


def arrays_of(result):
    """Of an alltoall only the rows."""
    if isinstance(result, tuple) and result[-1].dtype == np.int32:
        return [result[0]]
    return list(result) if isinstance(result, tuple) else [result]


def test_a_name_may_be_in_flight_in_every_process_set_at_once(process_sets):
    mine = [entry for entry in process_sets if entry.included()]
    if hvd.rank() % 2:
        mine.reverse()
    handles = [
        hvd.allreduce_async(np.ones(3), name="shared", op=hvd.Sum, process_set=entry)
        for entry in mine
    ]
    for entry, handle in zip(mine, handles, strict=True):
        assert hvd.synchronize(handle).tolist() == [entry.size()] * 3


@pytest.mark.parametrize("root", [-1, 99, 2**31 - 1])
def test_root_outside_of_the_world(root):
    with pytest.raises(ValueError, match=f"invalid root rank {root}"):
        hvd.broadcast(np.ones(3), root)


def test_root_outside_of_the_process_set(process_sets):
    for entry in process_sets[1:]:
        if entry.included():
            root = min(set(range(hvd.size())) - set(entry.ranks))
            with pytest.raises(ValueError, match=f"invalid root rank {root}"):
                hvd.broadcast(np.ones(3), root, process_set=entry)


@pytest.mark.parametrize(
    ("make_splits", "text"),
    [
        (lambda size: [1] * (size + 1), "entries"),
        (lambda size: [2] * (size - 1), "entries"),
        (lambda size: [5] * size, "add up"),
        (lambda size: [2**31] + [0] * (size - 1), "received splits are int32"),
        (lambda size: [-1] + [1] * (size - 1), "negative"),
        (lambda size: np.ones(size, np.int64), "int32 vector"),
        (lambda size: np.ones((size, 1), np.int32), "int32 vector"),
    ],
)
def test_splits_that_cannot_be(make_splits, text):
    """On one rank, while the others wait: it tries again under the same name."""
    array = np.full(3 * hvd.size(), hvd.rank())
    if hvd.rank() == 0:
        splits = make_splits(hvd.size())
        if text == "entries" and not splits:
            splits = [1, 1]
        with pytest.raises(ValueError, match=text):
            hvd.alltoall(array, splits, "splits")
    result, received = hvd.alltoall(array, [3] * hvd.size(), "splits")
    assert result.tolist() == np.repeat(np.arange(hvd.size()), 3).tolist()
    assert received.tolist() == [3] * hvd.size()


def test_rows_that_cannot_be_divided(several_ranks):
    with pytest.raises(ValueError, match="multiple of the number of ranks"):
        hvd.alltoall(np.ones(hvd.size() + 1))


def test_scalars_that_need_a_first_dimension():
    with pytest.raises(ValueError, match="does not support scalar"):
        hvd.reducescatter(np.ones(()), "scalar")
    with pytest.raises(ValueError, match="does not support scalar"):
        hvd.alltoall(np.ones(()), None, "scalar")
    with pytest.raises(MismatchError, match="rank-zero tensor"):
        hvd.grouped_allgather([np.ones(3), np.ones(())], "scalar")


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product, hvd.Adasum, 17])
def test_reducescatter_knows_two_ops(op):
    with pytest.raises(hvd.HorovodInternalError, match="Average or Sum"):
        hvd.reducescatter(np.ones(4), "op", op)
    with pytest.raises(hvd.HorovodInternalError, match="Average or Sum"):
        hvd.grouped_reducescatter_async([np.ones(4)], "op", op)


def test_empty_groups():
    for call in (hvd.grouped_allreduce, hvd.grouped_allreduce_, hvd.grouped_allgather):
        with pytest.raises(IndexError, match="at least one tensor"):
            call([])
    with pytest.raises(IndexError, match="at least one tensor"):
        hvd.grouped_reducescatter_async([])


def test_one_bad_member_stops_its_group():
    good, bad = np.ones(3), np.ones(3, np.uint32)
    for _ in range(2):
        with pytest.raises(ValueError, match="uint32"):
            hvd.grouped_allreduce_([good, good.copy(), bad], name="group", op=hvd.Sum)
        assert good.tolist() == [1, 1, 1]
    results = hvd.grouped_allreduce([good, good], name="group", op=hvd.Sum)
    assert [result.tolist() for result in results] == [[hvd.size()] * 3] * 2


def test_adasum_is_for_floats():
    with pytest.raises(ValueError, match="Adasum"):
        hvd.allreduce(np.ones(3, np.int32), op=hvd.Adasum)


def test_sets_that_cannot_be_used(process_sets):
    unregistered = hvd.ProcessSet([0])
    calls = [
        lambda entry: hvd.allreduce(np.ones(3), process_set=entry),
        lambda entry: hvd.grouped_allreduce([np.ones(3)], process_set=entry),
        lambda entry: hvd.allgather(np.ones(3), process_set=entry),
        lambda entry: hvd.broadcast(np.ones(3), 0, process_set=entry),
        lambda entry: hvd.alltoall(np.ones(12), process_set=entry),
        lambda entry: hvd.reducescatter(np.ones(3), process_set=entry),
        lambda entry: hvd.barrier(entry),
    ]
    unknown = hvd.ProcessSet([0])
    unknown.process_set_id = 77
    for call in calls:
        with pytest.raises(ValueError, match="not registered"):
            call(unregistered)
        with pytest.raises(ValueError, match="not registered"):
            call(unknown)
        for entry in process_sets:
            if not entry.included():
                with pytest.raises(ValueError, match=f"rank {hvd.rank()} is not a member"):
                    call(entry)


def test_arrays_that_cannot_be_sent():
    with pytest.raises(ValueError, match="contiguous"):
        hvd.allreduce(np.ones((4, 4)).T[1:])
    with pytest.raises(ValueError, match="uint32 is not supported"):
        hvd.allreduce(np.ones(3, np.uint32))
    read_only = np.ones(3)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        hvd.allreduce_(read_only)
    with pytest.raises(ValueError, match=r"expected a NumPy array, found list; np\.asarray"):
        hvd.allreduce([1.0, 2.0])
    with pytest.raises(ValueError, match="op="):
        hvd.allreduce(np.ones(3), op=17)


def test_the_old_average_argument():
    with pytest.warns(DeprecationWarning, match="average"):
        assert hvd.allreduce(np.ones(1), average=False)[0] == hvd.size()
    with pytest.raises(ValueError, match="not both"):
        hvd.allreduce(np.ones(1), average=True, op=hvd.Sum)


def test_errors_name_operation_and_tensor() -> None:
    gap = np.ones((4, 4))[:, :2]
    with pytest.raises(ValueError, match=r"^allgather 'bad': the array is not contiguous"):
        hvd.allgather(gap, name="bad")
    with pytest.raises(ValueError, match=r"^allreduce: the array is not contiguous"):
        hvd.allreduce_async(gap)
    with pytest.raises(ValueError, match=r"^grouped_allreduce 'bad': tensor 2 of 2: the array is"):
        hvd.grouped_allreduce_([np.ones(2), gap], name="bad")
    frozen = np.ones(2)
    frozen.setflags(write=False)
    with pytest.raises(ValueError, match=r"^allreduce 'bad': the array is read-only"):
        hvd.allreduce_(frozen, name="bad")
