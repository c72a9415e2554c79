"""broadcast_parameters and objects."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import horovod.mxnet as hvd


def test_objects():
    root = hvd.size() - 1
    assert hvd.broadcast_object({"rank": hvd.rank()}, root) == {"rank": root}
    assert hvd.broadcast_object(hvd.rank(), name="named") == 0
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))


def test_parameters_in_a_dict():
    root = hvd.size() - 1
    shapes = {"b": (3,), "a": (2, 2), "c": (500, 700)}
    params = {name: mx.nd.full(shape, hvd.rank() + 1) for name, shape in shapes.items()}
    given = dict(params)
    hvd.broadcast_parameters(params, root, prefix="dict ")
    for name, array in params.items():
        assert array is given[name]
        assert set(array.asnumpy().ravel()) == {root + 1.0}


def make_network(**options):
    network = nn.HybridSequential(prefix="net_")
    with network.name_scope():
        network.add(nn.Dense(5, **options), nn.BatchNorm(), nn.Dense(2))
    network.initialize(mx.init.Constant(hvd.rank() + 1.0))
    return network


@pytest.mark.parametrize("hybrid", [False, True])
def test_parameters_of_a_network(hybrid):
    """The first layer's are there; the others' shapes come from the first batch."""
    network = make_network(in_units=4)
    if hybrid:
        network.hybridize()
    hvd.broadcast_parameters(network.collect_params(), 0, prefix=f"{hybrid} ")
    assert set(network[0].weight.data().asnumpy().ravel()) == {1.0}
    network(mx.nd.ones((2, 4)))
    assert set(network[2].weight.data().asnumpy().ravel()) == {1.0}
    network[2].weight.set_data(mx.nd.zeros((2, 5)))
    assert not network[2].weight.data().asnumpy().any()


def test_initialising_again_is_each_ranks_own():
    network = make_network()
    hvd.broadcast_parameters(network.collect_params(), 0, prefix="again ")
    network(mx.nd.ones((2, 4)))
    if hvd.rank() == 0:
        network.initialize(mx.init.Zero(), force_reinit=True)
        assert not network[2].weight.data().asnumpy().any()
    assert hvd.allgather_object(1) == [1] * hvd.size()


def test_parameters_of_a_module():
    data = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    module = mx.mod.Module(data, label_names=None)
    module.bind([("data", (2, 4))], for_training=False)
    module.init_params(mx.init.Constant(hvd.rank() + 1.0))
    arguments, others = module.get_params()
    hvd.broadcast_parameters(arguments, 0, prefix="arguments ")
    hvd.broadcast_parameters(others, 0, prefix="others ")
    module.set_params(arguments, others)
    assert set(module.get_params()[0]["fc_weight"].asnumpy().ravel()) == {1.0}


@pytest.mark.parametrize(
    "wrong", [[mx.nd.ones(1)], None, mx.nd.ones(1)], ids=["list", "None", "nd"]
)
def test_other_types_are_refused(wrong):
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters(wrong)


@pytest.mark.usefixtures("several_ranks")
def test_parameters_of_other_shapes():
    with pytest.raises(mx.MXNetError, match="MismatchError"):
        hvd.broadcast_parameters({"x": mx.nd.ones(2 + hvd.rank())})
    hvd.broadcast_parameters({"x": mx.nd.array(np.arange(3))})
