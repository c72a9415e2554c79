"""Collectives as operations of MXNet's engine: orders, dependencies, layouts, errors."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import horovod.mxnet as hvd
import horovod.numpy as host

needs_two = pytest.mark.usefixtures("several_ranks")


def own_order(count: int) -> list[int]:
    """Another order on every rank."""
    return [int(i) for i in np.random.default_rng(hvd.rank()).permutation(count)]


def works():
    return hvd.allreduce(mx.nd.ones(2), op=hvd.Sum).asnumpy().tolist() == [hvd.size()] * 2


def test_calls_return_before_the_others_have_called():
    if hvd.rank() == 0:
        results = [hvd.allreduce(mx.nd.ones(3), op=hvd.Sum, name="early")]
        results.append(hvd.allgather(mx.nd.ones(1), name="early"))
        hvd.allreduce_(results[0], op=hvd.Sum, name="early again")
        host.barrier()
    else:
        host.barrier()
        results = [hvd.allreduce(mx.nd.ones(3), op=hvd.Sum, name="early")]
        results.append(hvd.allgather(mx.nd.ones(1), name="early"))
        hvd.allreduce_(results[0], op=hvd.Sum, name="early again")
    assert results[0].asnumpy().tolist() == [hvd.size() ** 2] * 3
    assert results[1].shape == (hvd.size(),)


def test_many_at_once_in_orders_that_differ():
    """Far more than MXNet has threads; each result is the input of another operation.

    Not of one that needs MXNet's temporary memory, such as ``first * 2``: those MXNet runs in the
    order of their calls, whatever they wait for.
    """
    found = {}
    for i in own_order(100):
        first = hvd.allreduce(mx.nd.full((i + 1,), i), op=hvd.Sum, name=f"first {i}")
        second = hvd.broadcast(mx.nd.square(first), 0, name=f"second {i}")
        gathered = hvd.allgather(mx.nd.negative(second), name=f"third {i}") if i % 10 == 0 else None
        found[i] = hvd.allreduce_(second, op=hvd.Max, name=f"fourth {i}", priority=i), gathered
    for i in own_order(100):
        reduced, gathered = found[i]
        expected = float(i * hvd.size()) ** 2
        assert reduced.asnumpy().tolist() == [expected] * (i + 1)
        if gathered is not None:
            assert gathered.asnumpy().tolist() == [-expected] * (i + 1) * hvd.size()


def test_what_reads_one_array_does_not_wait_for_each_other():
    array = mx.nd.ones(1000)
    found = {i: hvd.allreduce(array, op=hvd.Sum, name=f"reader {i}") for i in own_order(20)}
    for i in own_order(20):
        assert found[i].asnumpy()[0] == hvd.size()


def test_operations_of_one_name_run_in_the_order_of_their_calls():
    slow = mx.nd.ones((300, 300))
    for _ in range(hvd.rank() * 5):
        slow = mx.nd.dot(slow, slow) / 300
    results = []
    for i in range(20):  # some inputs are ready later, on each rank other ones
        late = slow[0] if (i + hvd.rank()) % 3 == 0 else mx.nd.ones(300)
        results.append(hvd.allreduce(late * i, op=hvd.Sum, name="same"))
    for i, result in enumerate(results):
        np.testing.assert_allclose(result.asnumpy(), np.full(300, i * hvd.size()), rtol=1e-3)


def test_in_place_between_computations():
    array = mx.nd.ones((64, 64)) * (hvd.rank() + 1)
    total = sum(range(1, hvd.size() + 1))
    for step in range(10):
        array = array * 0 + hvd.rank() + 1
        hvd.allreduce_(array, op=hvd.Sum, name="step")
        array += step
    assert set(array.asnumpy().ravel()) == {total + 9.0}


def test_arrays_that_outlive_only_in_the_engine():
    results = [hvd.allreduce(mx.nd.ones(50_000) * i, op=hvd.Sum) for i in range(20)]
    hvd.allreduce(mx.nd.ones(50_000))
    for i, result in enumerate(results):
        assert result.asnumpy()[-1] == i * hvd.size()


def convolution():
    """A network whose results and, after inference, weights have a layout of oneDNN's."""
    network = nn.Conv2D(32, 3, in_channels=16)
    network.initialize(mx.init.One())
    images = mx.nd.arange(16 * 12 * 12).reshape((1, 16, 12, 12)) / 1000
    for _ in range(3):
        result = network(images)
    return network, result, network(images).asnumpy()


def test_layouts_of_onednn():
    _, result, expected = convolution()
    reduced = hvd.allreduce(result, op=hvd.Sum)
    np.testing.assert_allclose(reduced.asnumpy(), expected * hvd.size(), rtol=1e-6)
    gathered = hvd.allgather(result, name="layout")
    assert gathered.shape == (hvd.size(), *expected.shape[1:])
    np.testing.assert_array_equal(gathered[hvd.rank() : hvd.rank() + 1].asnumpy(), expected)


def test_layouts_of_onednn_in_place():
    network, result, expected = convolution()
    weights = network.weight.data()
    hvd.grouped_allreduce_([result, weights], op=hvd.Sum, name="layouts")
    np.testing.assert_allclose(result.asnumpy(), expected * hvd.size(), rtol=1e-6)
    assert set(weights.asnumpy().ravel()) == {float(hvd.size())}


@needs_two
@pytest.mark.parametrize("wait", [lambda r: r.wait_to_read(), lambda r: r.asnumpy()])
def test_a_mismatch_surfaces_where_a_result_is_waited_for(wait):
    for _ in range(2):
        result = hvd.allreduce(mx.nd.ones(2 + hvd.rank()), name="mismatch")
        with pytest.raises(mx.MXNetError, match=r"HorovodInternalError \(MismatchError\).*match"):
            wait(result)
    assert works()


@needs_two
def test_a_mismatch_surfaces_from_what_has_a_shape_of_its_own():
    result = hvd.allgather(mx.nd.ones((2, 2 + hvd.rank())), name="mismatch")
    for look in (lambda: result.shape, lambda: result + 1, lambda: result.asnumpy()):
        with pytest.raises(mx.MXNetError, match="MismatchError"):
            look()
    assert works()


@needs_two
def test_a_mismatch_surfaces_from_what_follows():
    result = hvd.allreduce(mx.nd.ones(2 + hvd.rank()), name="mismatch")
    with pytest.raises(mx.MXNetError, match="MismatchError"):
        (result[0:1] * 2).asnumpy()
    assert works()


def test_an_error_of_mxnet_passes_through():
    wrong = mx.nd.random.normal(0, -1, shape=(2,))
    gathered = hvd.allgather(wrong)
    with pytest.raises(mx.MXNetError, match=r"scale|run"):
        gathered.asnumpy()
    with pytest.raises(mx.MXNetError, match="scale"):
        hvd.allreduce(mx.nd.random.normal(0, -1, shape=(2,))).asnumpy()
    assert works()


REFUSED = {
    "op": (lambda x: hvd.allreduce(x, op=17), ValueError),
    "both": (lambda x: hvd.allreduce(x, True, op=hvd.Sum), ValueError),
    "adasum": (lambda x: hvd.allreduce(x, op=hvd.Adasum), AssertionError),
    "factor": (lambda x: hvd.allreduce(x, prescale_factor="a"), ValueError),
    "root": (lambda x: hvd.broadcast(x, "a"), ValueError),
    "set": (lambda x: hvd.allreduce(x, process_set=hvd.ProcessSet([0])), ValueError),
    "array": (lambda x: hvd.allreduce(x.asnumpy()), ValueError),
    "gathered array": (lambda x: hvd.allgather(x.asnumpy()), AssertionError),
    "dtype": (lambda x: hvd.allreduce(x.astype("bool")), ValueError),
    "sparse": (lambda x: hvd.allreduce(x.reshape((3, 1)).tostype("row_sparse")), ValueError),
    "scattered op": (lambda x: hvd.reducescatter(x, hvd.Max), AssertionError),
    "empty splits": (lambda x: hvd.alltoall(x, []), ValueError),
    "float splits": (lambda x: hvd.alltoall(x, x), ValueError),
}


@pytest.mark.parametrize(("call", "error"), REFUSED.values(), ids=REFUSED.keys())
def test_arguments_are_refused_at_once(call, error):
    with pytest.raises(error, match=r"."):
        call(mx.nd.ones(3))
    assert works()


def test_what_the_engine_refuses():
    result = hvd.alltoall(mx.nd.ones(3), [4] * hvd.size())
    with pytest.raises(mx.MXNetError, match="splits"):
        result[0].asnumpy()
    with mx.util.np_shape(True):
        scalar = mx.nd.array(np.float32(1).reshape(()))
        with pytest.raises(ValueError, match="dimension"):
            hvd.reducescatter(scalar)
        with pytest.raises(mx.MXNetError, match="0 dimensions"):
            hvd.allgather(scalar).asnumpy()
    assert works()


def test_one_name_in_several_process_sets(process_sets):
    order = [process_sets[i] for i in own_order(len(process_sets))]
    found = {}
    for process_set in filter(hvd.ProcessSet.included, order):
        options = {"op": hvd.Sum, "name": "shared", "process_set": process_set}
        found[process_set] = hvd.allreduce(mx.nd.ones(2), **options)
    for process_set, result in found.items():
        assert result.asnumpy().tolist() == [process_set.size()] * 2
