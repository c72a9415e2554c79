"""join: what the others get while a rank has no more data, and who was last."""

from __future__ import annotations

import arithmetic
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import horovod.tensorflow as hvd  # noqa: E402
from horovod.tensorflow import mpi_ops  # noqa: E402


@pytest.fixture(params=["first joins", "last joins", "all but the last join"])
def joined(request):
    """The ranks that join at once."""
    if hvd.size() == 1:
        pytest.skip("one rank that joins leaves nobody behind")
    last = hvd.size() - 1
    return {"first joins": [0], "last joins": [last]}.get(request.param, list(range(last)))


def finish(mode, joined):
    """Join too, in an order that is known: who is last ends an operation without the others."""
    last = min(set(range(hvd.size())) - set(joined))
    if hvd.rank() == last:
        # It can end only when nobody else is left.
        (alone,) = mode(lambda t: mpi_ops.allreduce(t[0], "alone", hvd.Sum), [np.ones(1, "f4")])
        assert alone.tolist() == [1.0]
    (found,) = mode(lambda _: mpi_ops.join(), [])
    assert (found.dtype, found.shape, int(found)) == (np.int32, (), last)


@pytest.mark.parametrize("dtype", ["f4", "f2", "i4"])
def test_reductions_go_on_with_zeros(mode, joined, dtype):
    shapes = [(), (5,), (3, 7), (70_001,)]
    if hvd.rank() not in joined:
        inputs = [
            [arithmetic.values(dtype, shape, rank) * (rank not in joined) for shape in shapes]
            for rank in range(hvd.size())
        ]
        inputs = [[np.asarray(array, dtype) for array in of_rank] for of_rank in inputs]

        def body(tensors):
            singly = [mpi_ops.allreduce(t, f"join {i}", hvd.Sum) for i, t in enumerate(tensors)]
            return singly, mpi_ops.grouped_allreduce(tensors, "join group")

        for _ in range(2):  # the second time all names are known
            results = mode(body, inputs[hvd.rank()])
            for i, of_ranks in enumerate(zip(*inputs, strict=True)):
                total = arithmetic.reduced(hvd.Sum, of_ranks)
                np.testing.assert_array_equal(results[i], total)
                average = arithmetic.reduced(hvd.Average, of_ranks)
                np.testing.assert_array_equal(results[len(shapes) + i], average)
    finish(mode, joined)


def test_exchanges_go_on_without_their_rows(mode, joined):
    if hvd.rank() not in joined:
        present = [rank for rank in range(hvd.size()) if rank not in joined]
        mine = np.full((3, 2), hvd.rank(), "i8")
        gathered, received, splits, sent = mode(
            lambda t: [
                mpi_ops.allgather(t[0], "gather"),
                mpi_ops.alltoall(t[0][:1], [int(r == hvd.rank()) for r in range(hvd.size())], "a"),
                mpi_ops.broadcast(t[0], present[0], "broadcast"),
            ],
            [mine],
        )
        assert gathered[::3, 0].tolist() == present
        assert received.tolist() == mine[:1].tolist()
        assert splits.tolist() == [int(rank == hvd.rank()) for rank in range(hvd.size())]
        assert set(sent.ravel()) == {present[0]}
    finish(mode, joined)


def test_a_root_that_has_joined(mode, joined):
    if hvd.rank() not in joined:
        with pytest.raises(tf.errors.OpError, match="not supported with Join"):
            mode(lambda t: mpi_ops.broadcast(t[0], joined[0], "root"), [np.ones(3)])
    finish(mode, joined)
