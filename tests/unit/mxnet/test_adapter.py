"""What the engine is given: names, priorities, and arrays of other devices."""

from __future__ import annotations

import mxnet as mx
import pytest

import horovod.mxnet as hvd
from horovod.core.calls import Call
from horovod.core.operations import Kind
from horovod.mxnet import adapter

pytestmark = pytest.mark.usefixtures("world")


def test_unnamed_operations_are_numbered_by_kind_and_set():
    def name(kind, is_group=False):
        call = Call(kind, is_group=is_group)
        return adapter.make_call(call, [mx.nd.ones(1)], None).name.decode()

    assert [name(Kind.ALLREDUCE), name(Kind.ALLREDUCE)] == [
        "allreduce.noname.0",
        "allreduce.noname.1",
    ]
    assert name(Kind.ALLREDUCE, True) == "grouped_allreduce.noname.0"
    hvd.shutdown()
    hvd.init()
    assert name(Kind.ALLREDUCE) == "allreduce.noname.0"


def test_operations_of_one_name_share_their_order():
    def order(name):
        return adapter.make_call(Call(Kind.BROADCAST), [mx.nd.ones(1)], name).order

    assert order(None) is None
    assert order("a") is order("a")
    assert order("a") is not order("b")


def test_what_is_given_to_mxnet(monkeypatch):
    given = []
    push = adapter.push
    monkeypatch.setattr(adapter, "push", lambda call: given.append(call) or push(call))
    array = mx.nd.ones(3)
    hvd.allreduce_(array, None, "a", 5, 2.0, 3.0, op=hvd.Sum)
    hvd.broadcast(array, 0, "b", -7)
    hvd.grouped_allgather([array, array], "c", 9)
    assert [call.name for call in given] == [b"allreduce.a", b"broadcast.b", b"grouped_allgather.c"]
    assert [call.priority for call in given] == [5, -7, 9]
    assert [call.is_group for call in given] == [0, 0, 1]
    assert (given[0].op, given[0].prescale, given[0].postscale) == (hvd.Sum, 2.0, 3.0)
    assert array.asnumpy().tolist() == [6.0] * 3


def test_arrays_of_other_devices_travel_by_copies(monkeypatch):
    """MXNet's second CPU stands in for a GPU."""
    monkeypatch.setattr(adapter, "_is_on_host", lambda array: array.ctx == mx.cpu(0))
    there = mx.cpu(1)
    array = mx.nd.ones(4, ctx=there)
    results = [
        hvd.allreduce(array, postscale_factor=2.0),
        *hvd.grouped_allreduce([array], postscale_factor=2.0),
        hvd.allgather(array) * 2,
        hvd.alltoall(array, [4])[0] * 2,
        hvd.allreduce_(array, postscale_factor=2.0),
    ]
    assert results[-1] is array
    for result in results:
        assert result.ctx == there
        assert result.asnumpy().tolist() == [2.0] * 4


def test_a_parameter_on_several_devices_is_broadcast_to_all(monkeypatch):
    monkeypatch.setattr("horovod.mxnet.functions.size", lambda: 2)
    params = mx.gluon.ParameterDict()
    parameter = params.get("weight", shape=(2,))
    parameter.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    parameter.list_data()[0][:] = 3
    hvd.broadcast_parameters(params)
    for copy in parameter.list_data():
        assert copy.asnumpy().tolist() == [3.0, 3.0]
    with pytest.raises(ValueError, match="trains on one device"):
        hvd.DistributedTrainer(params, "sgd")
