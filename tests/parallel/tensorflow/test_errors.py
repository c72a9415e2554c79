"""Every call that cannot be right: TensorFlow's error classes, and an engine that works on."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import horovod.numpy as hvd_numpy  # noqa: E402
import horovod.tensorflow as hvd  # noqa: E402
from horovod.tensorflow import mpi_ops  # noqa: E402
from horovod.tensorflow.python_ops import PythonOps  # noqa: E402

ONES = np.ones((2, 3), "f4")
ROWS = np.ones((24, 3), "f4")  # a multiple of the number of ranks


@pytest.fixture
def mismatch(request):
    """What ranks get that disagree."""
    # A Python node in a graph can fail as InvalidArgumentError or UnknownError only.
    is_eager = request.getfixturevalue("mode").__name__ == "eager"
    if isinstance(mpi_ops.implementation(), PythonOps) and not is_eager:
        return tf.errors.UnknownError
    return tf.errors.FailedPreconditionError


@pytest.fixture(autouse=True)
def usable_afterwards():
    yield
    result = mpi_ops.allreduce(tf.ones(2), "afterwards", hvd.Sum)
    assert result.numpy().tolist() == [hvd.size()] * 2


def integers(odd, array=ONES):
    return array.astype("i4") if odd else array


def wide(odd, array=ONES):
    return array.repeat(2, axis=1) if odd else array


def flat(odd, array=ONES):
    return array.ravel() if odd else array


def op(odd):
    return hvd.Average if odd else hvd.Sum


# Of one rank that is odd and of the others: what they give, and what they call with it.
DISAGREEMENTS = {
    "shape": (wide, lambda odd, t, **s: mpi_ops.allreduce(t, "m", **s), "shapes"),
    "ndim": (flat, lambda odd, t, **s: mpi_ops.allreduce(t, "m", **s), "shapes"),
    "dtype": (integers, lambda odd, t, **s: mpi_ops.allreduce(t, "m", **s), "data types"),
    "op": (
        lambda odd: ONES,
        lambda odd, t, **s: mpi_ops.allreduce(t, "m", op(odd), **s),
        "reduction op",
    ),
    "factor": (
        lambda odd: ONES,
        lambda odd, t, **s: mpi_ops.allreduce(t, "m", prescale_factor=1.0 + odd, **s),
        "prescale and/or postscale",
    ),
    "operation": (
        lambda odd: ONES,
        lambda odd, t, **s: (mpi_ops.allgather if odd else mpi_ops.allreduce)(t, "m", **s),
        "Mismatched operations",
    ),
    "group size": (
        lambda odd: ONES,
        lambda odd, t, **s: mpi_ops.grouped_allreduce([t] * (3 + odd), "m", **s),
        "group sizes",
    ),
    "group member": (
        wide,
        lambda odd, t, **s: mpi_ops.grouped_allreduce([tf.ones(2), t], "m", **s),
        "tensor 2 of 2.*shapes",
    ),
    "broadcast shape": (
        wide,
        lambda odd, t, **s: mpi_ops.broadcast(t, s["process_set"].ranks[0], "m", **s),
        "shapes",
    ),
    "broadcast root": (
        lambda odd: ONES,
        lambda odd, t, **s: mpi_ops.broadcast(t, s["process_set"].ranks[int(odd)], "m", **s),
        "root ranks",
    ),
    "allgather dim": (wide, lambda odd, t, **s: mpi_ops.allgather(t, "m", **s), "dimension"),
    "allgather ndim": (flat, lambda odd, t, **s: mpi_ops.allgather(t, "m", **s), "dimensions"),
    "allgather dtype": (integers, lambda odd, t, **s: mpi_ops.allgather(t, "m", **s), "types"),
    "gathered group": (
        wide,
        lambda odd, t, **s: mpi_ops.grouped_allgather([tf.ones(2), t], "m", **s),
        "tensor 2 of 2",
    ),
    "alltoall dim": (
        lambda odd: wide(odd, ROWS),
        lambda odd, t, **s: mpi_ops.alltoall(t, None, "m", **s),
        "dimension",
    ),
    "alltoall dtype": (
        lambda odd: integers(odd, ROWS),
        lambda odd, t, **s: mpi_ops.alltoall(t, None, "m", **s),
        "data types",
    ),
    "scatter shape": (
        lambda odd: wide(odd, ROWS),
        lambda odd, t, **s: mpi_ops.reducescatter(t, "m", **s),
        "shapes",
    ),
    "scatter op": (
        lambda odd: ROWS,
        lambda odd, t, **s: mpi_ops.reducescatter(t, "m", op(odd), **s),
        "reduction op",
    ),
    "scattered group": (
        lambda odd: wide(odd, ROWS),
        lambda odd, t, **s: mpi_ops.grouped_reducescatter([tf.ones(12), t], "m", **s),
        "tensor 2 of 2.*shapes",
    ),
}


@pytest.mark.parametrize("way", list(DISAGREEMENTS))
def test_disagreement_is_an_error_on_every_rank(process_sets, mode, mismatch, way):
    """The last rank of the set is the odd one; afterwards all agree under the same name."""
    if hvd.size() == 1:
        pytest.skip("one rank cannot disagree")
    give, call, text = DISAGREEMENTS[way]
    for process_set in process_sets:
        if not process_set.included() or process_set.size() == 1:
            continue

        def body(tensors, odd, process_set=process_set):
            return call(odd, tensors[0], process_set=process_set)

        is_odd = process_set.rank() == process_set.size() - 1
        with pytest.raises(mismatch, match=rf"'m'.*{text}"):
            mode(partial(body, odd=is_odd), [give(is_odd)])
        result = mode(partial(body, odd=False), [give(False)])[0]
        assert set(np.unique(result)) <= {1, process_set.size()}


@pytest.mark.parametrize("root", [-1, 99])
def test_root_outside_of_the_world(mode, root):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"invalid root rank {root}"):
        mode(lambda tensors: mpi_ops.broadcast(tensors[0], root, "b"), [ONES])


def test_root_outside_of_the_process_set(process_sets, mode):
    for entry in filter(hvd.ProcessSet.included, process_sets[1:]):
        root = min(set(range(hvd.size())) - set(entry.ranks))
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"invalid root rank {root}"):
            mode(lambda t, r=root, s=entry: mpi_ops.broadcast(t[0], r, "b", process_set=s), [ONES])


@pytest.mark.parametrize(
    ("make_splits", "text"),
    [
        (lambda size: [1] * (size + 1), "entries"),
        (lambda size: [5] * size, "add up"),
        (lambda size: [-1] + [1] * (size - 1), "negative"),
        (lambda size: np.ones((size, 1), "i4"), "int32 vector"),
    ],
)
def test_splits_that_cannot_be(mode, make_splits, text):
    """On one rank, while the others wait: it tries again under the same name."""
    array = np.full(3 * hvd.size(), hvd.rank())

    def body(tensors, splits):
        return mpi_ops.alltoall(tensors[0], splits, "splits")

    if hvd.rank() == 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            mode(partial(body, splits=make_splits(hvd.size())), [array])
    result, received = mode(partial(body, splits=[3] * hvd.size()), [array])
    assert result.tolist() == np.repeat(np.arange(hvd.size()), 3).tolist()
    assert received.tolist() == [3] * hvd.size()


@pytest.mark.parametrize("splits", [[], [0.5], "text", np.int64], ids=repr)
def test_splits_that_are_no_int32_vector(mode, splits):
    def body(tensors):
        given = tf.ones(hvd.size(), tf.int64) if splits is np.int64 else splits
        return mpi_ops.alltoall(tensors[0], given, "splits")

    with pytest.raises(tf.errors.InvalidArgumentError, match="splits"):
        mode(body, [ROWS])


def test_rows_that_cannot_be_divided(mode):
    if hvd.size() == 1:
        pytest.skip("one rank gets all rows")
    with pytest.raises(tf.errors.InvalidArgumentError, match="multiple of the number of ranks"):
        mode(lambda tensors: mpi_ops.alltoall(tensors[0], None, "rows"), [np.ones(hvd.size() + 1)])


@pytest.mark.parametrize(
    "call", [mpi_ops.reducescatter, lambda t: mpi_ops.grouped_reducescatter([t])]
)
def test_reducescatter_of_a_scalar(mode, call):
    is_eager = mode.__name__ == "eager"
    error = tf.errors.InvalidArgumentError if is_eager else ValueError
    with pytest.raises(error, match="does not support scalar"):
        mode(lambda tensors: call(tensors[0]), [np.ones(())])


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product, hvd.Adasum])
def test_reducescatter_knows_two_ops(mode, op):
    for call in (mpi_ops.reducescatter, lambda t, **o: mpi_ops.grouped_reducescatter([t], **o)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Average or Sum"):
            mode(lambda tensors, call=call: call(tensors[0], op=op), [ONES])


def test_dtypes_without_the_operation(mode):
    for call, array, text in (
        (lambda t: mpi_ops.allreduce(t, "d"), np.ones(3, bool), "bool"),
        (lambda t: mpi_ops.allreduce(t, "d", hvd.Adasum), np.ones(3, "i4"), "Adasum"),
        (lambda t: mpi_ops.allgather(t, "d"), np.ones(3, "u4"), "uint32"),
    ):
        with pytest.raises((tf.errors.InvalidArgumentError, TypeError), match=text):
            mode(lambda tensors, call=call: call(tensors[0]), [array])


CALLS = [
    lambda t, **s: mpi_ops.allreduce(t, "s", **s),
    lambda t, **s: mpi_ops.grouped_allreduce([t], "s", **s),
    lambda t, **s: mpi_ops.allgather(t, "s", **s),
    lambda t, **s: mpi_ops.broadcast(t, 0, "s", **s),
    lambda t, **s: mpi_ops.alltoall(t, None, "s", **s),
    lambda t, **s: mpi_ops.reducescatter(t, "s", **s),
]


def test_sets_that_cannot_be_used(process_sets, mode):
    unregistered, unknown = hvd.ProcessSet([0]), hvd.ProcessSet([0])
    unknown.process_set_id = 77
    foreign = [entry for entry in process_sets if not entry.included()]
    for call in CALLS:
        for entry in (unregistered, unknown):  # before anything is built
            with pytest.raises(ValueError, match="not registered"):
                mode(lambda t, call=call, s=entry: call(t[0], process_set=s), [ROWS])
        for entry in foreign:
            with pytest.raises(tf.errors.InvalidArgumentError, match="is not a member"):
                mode(lambda t, call=call, s=entry: call(t[0], process_set=s), [ROWS])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda t: mpi_ops.allreduce(t, op=17), "op="),
        (lambda t: mpi_ops.allreduce(t, op=[]), "op="),
        (lambda t: mpi_ops.allreduce(t, prescale_factor="x"), "factors must be numbers"),
        (lambda t: mpi_ops.reducescatter(t, postscale_factor=None), "factors must be numbers"),
        (lambda t: mpi_ops.allreduce(t, process_set=[0]), "must be a ProcessSet"),
        (lambda t: mpi_ops.broadcast(t, "0"), "root_rank must be a rank"),
        (lambda t: mpi_ops.grouped_allreduce(t), "expected a list of tensors"),
        (lambda t: mpi_ops.broadcast_(t, 0), "expected a list"),
        (lambda t: mpi_ops.broadcast_([t], 0), "expected a list of variables"),
    ],
)
def test_arguments_of_the_wrong_type(mode, call, text):
    with pytest.raises(ValueError, match=text):
        mode(lambda tensors: call(tensors[0]), [ONES])


def test_empty_groups():
    for call in (
        mpi_ops.grouped_allreduce,
        mpi_ops.grouped_allgather,
        mpi_ops.grouped_reducescatter,
    ):
        assert call([]) == []
    assert mpi_ops.allreduce_batch([], []) == mpi_ops.broadcast_batch([], [], 0) == []


def test_a_name_in_flight_is_refused():
    """The second is refused, the first is as if nothing had happened."""
    if hvd.size() == 1:
        pytest.skip("one rank waits for nobody")
    busy = hvd_numpy.allreduce_async(np.ones(4), name="busy") if hvd.rank() == 0 else None
    if hvd.rank() == 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match="still being processed"):
            mpi_ops.allreduce(tf.ones(4, tf.float64), "allreduce.busy")
    hvd_numpy.barrier()
    if hvd.rank() != 0:
        busy = hvd_numpy.allreduce_async(np.ones(4), name="busy")
    assert hvd_numpy.synchronize(busy).tolist() == [1.0] * 4
