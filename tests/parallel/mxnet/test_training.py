"""DistributedTrainer and DistributedOptimizer: as one process on the joint batch would train."""

from __future__ import annotations

import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import horovod.mxnet as hvd

BATCH = 24  # joint; a multiple of every number of ranks
RANDOM = np.random.default_rng(5)
INPUTS = RANDOM.uniform(-1, 1, (3, BATCH, 6)).astype("f4")
TARGETS = RANDOM.uniform(-1, 1, (3, BATCH, 2)).astype("f4")
OPTIONS = {"learning_rate": 0.3, "momentum": 0.9}


def share(array):
    """This rank's rows of a joint batch."""
    return array[hvd.rank() :: hvd.size()]


def make_network(hybrid=False):
    """The same weights everywhere."""
    network = nn.HybridSequential(prefix="net_")
    with network.name_scope():
        network.add(nn.Dense(8, activation="tanh", in_units=6), nn.Dense(2, in_units=8))
    network.initialize()
    random = np.random.default_rng(1)
    for parameter in network.collect_params().values():
        parameter.set_data(mx.nd.array(random.uniform(-0.5, 0.5, parameter.shape)))
    if hybrid:
        network.hybridize(static_alloc=True)
    return network


def weights_of(network):
    params = network.collect_params()
    return np.concatenate([params[name].data().asnumpy().ravel() for name in sorted(params)])


def train(network, trainer, part=share):
    for inputs, targets in zip(INPUTS, TARGETS, strict=True):
        own = part(inputs)
        with autograd.record():
            loss = gluon.loss.L2Loss()(network(mx.nd.array(own)), mx.nd.array(part(targets)))
        loss.backward()
        trainer.step(len(own))
    return weights_of(network)


def expected_weights(part=lambda array: array):
    network = make_network()
    trainer = gluon.Trainer(network.collect_params(), "sgd", dict(OPTIONS), kvstore=None)
    return train(network, trainer, part)


def all_equal(array):
    everywhere = hvd.allgather_object(array.tobytes())
    return len(set(everywhere)) == 1


TRAINERS = {
    "plain": {},
    "predivide": {"gradient_predivide_factor": 2.0},
    "one group": {"num_groups": 1},
    "groups": {"num_groups": 3},
    "prefix": {"prefix": "another "},
}


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("options", TRAINERS.values(), ids=TRAINERS.keys())
def test_trainer(options, hybrid):
    network = make_network(hybrid)
    trainer = hvd.DistributedTrainer(network.collect_params(), "sgd", dict(OPTIONS), **options)
    found = train(network, trainer)
    np.testing.assert_allclose(found, expected_weights(), rtol=1e-4, atol=1e-6)
    assert all_equal(found)


def test_trainer_with_compression():
    network = make_network()
    params = network.collect_params()
    trainer = hvd.DistributedTrainer(params, "sgd", dict(OPTIONS), hvd.Compression.fp16)
    found = train(network, trainer)
    np.testing.assert_allclose(found, expected_weights(), rtol=3e-2, atol=3e-3)
    assert all_equal(found)


def test_trainer_of_a_list_and_an_optimizer():
    network = make_network()
    params = list(network.collect_params().values())[::-1]
    optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", **OPTIONS))
    with pytest.warns(UserWarning, match="takes the optimizer inside"):
        trainer = hvd.DistributedTrainer(params, optimizer)
    assert type(trainer.optimizer) is mx.optimizer.SGD
    found = train(network, trainer)
    np.testing.assert_allclose(found, expected_weights(), rtol=1e-4, atol=1e-6)


def test_gradients_after_allreduce_are_means():
    network = make_network()
    trainer = hvd.DistributedTrainer(network.collect_params(), "sgd", dict(OPTIONS))
    network[0].bias.grad_req = "null"
    with autograd.record():
        loss = network(mx.nd.ones((1, 6))).sum() * hvd.rank()
    loss.backward()
    trainer.allreduce_grads()
    mean = sum(range(hvd.size())) / hvd.size()
    np.testing.assert_allclose(network[1].bias.grad().asnumpy(), [mean] * 2)
    trainer.update(1)


def test_trainer_with_dtypes_that_differ_in_a_group():
    params = gluon.ParameterDict()
    for name, dtype in [("a", "float32"), ("b", "float64"), ("c", "float32"), ("d", "float64")]:
        params.get(name, shape=(3,), dtype=dtype, init="zeros")
    params.initialize()
    trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0}, num_groups=2)
    for parameter in params.values():
        parameter.grad()[:] = hvd.rank()
    trainer.allreduce_grads()
    for parameter in params.values():
        assert parameter.grad().asnumpy().tolist() == [sum(range(hvd.size())) / hvd.size()] * 3


def test_trainers_of_process_sets(process_sets):
    for process_set in process_sets:
        network = make_network()
        params = network.collect_params()
        trainer = hvd.DistributedTrainer(
            params, "sgd", dict(OPTIONS), prefix=f"{process_set}", process_set=process_set
        )
        found = train(network, trainer)
        members = process_set.ranks if process_set.included() else [hvd.rank()]
        rows = sorted(row for rank in members for row in range(rank, BATCH, hvd.size()))
        expected = expected_weights(lambda array, rows=rows: array[rows])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


REFUSED = {
    "predivide": {"gradient_predivide_factor": -1.0},
    "groups": {"num_groups": -1},
    "no number": {"num_groups": "2"},
    "compression": {"compression": 3},
    "set": {"process_set": 1},
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED.keys())
def test_refused(options):
    with pytest.raises(ValueError, match=r"."):
        hvd.DistributedTrainer(make_network().collect_params(), "sgd", dict(OPTIONS), **options)


def test_refused_by_the_optimizer():
    with pytest.raises(ValueError, match="expected an mx"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(ValueError, match="num_groups"):
        hvd.DistributedOptimizer(mx.optimizer.SGD(), num_groups=-1)


def test_optimizer_is_the_one_inside():
    inner = mx.optimizer.create("sgd", learning_rate=0.5)
    optimizer = hvd.DistributedOptimizer(inner)
    assert isinstance(optimizer, mx.optimizer.Optimizer)
    optimizer.set_learning_rate(0.25)
    optimizer.rescale_grad = 0.125
    optimizer.set_lr_mult({"a": 2.0})
    optimizer.set_wd_mult({"a": 3.0})
    assert (inner.lr, inner.rescale_grad, inner.lr_mult["a"]) == (0.25, 0.125, 2.0)
    assert inner.wd_mult["a"] == 3.0
    assert optimizer.learning_rate == 0.25
    assert optimizer.aggregate_num == inner.aggregate_num
    assert pickle.loads(pickle.dumps(inner)).lr == 0.25
    with pytest.raises(AttributeError):
        optimizer.nothing  # noqa: B018


@pytest.mark.parametrize("num_groups", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_optimizer_updates_with_means(num_groups, dtype):
    inner = mx.optimizer.create("sgd", learning_rate=1.0, multi_precision=True)
    optimizer = hvd.DistributedOptimizer(inner, 4.0, num_groups)
    updater = mx.optimizer.get_updater(optimizer)
    weights = [mx.nd.zeros((2,), dtype=dtype) for _ in range(5)]
    for step in (1, 2):
        gradients = [mx.nd.full((2,), hvd.rank() + i, dtype=dtype) for i in range(5)]
        updater(list(range(5)), gradients, weights)
        for i, weight in enumerate(weights):
            mean = sum(range(hvd.size())) / hvd.size() + i
            np.testing.assert_allclose(weight.asnumpy(), [-step * mean] * 2, rtol=1e-3)


def test_optimizer_updates_one_weight():
    optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0))
    weight, gradient = mx.nd.zeros((3,)), mx.nd.full((3,), hvd.rank())
    optimizer.update(7, weight, gradient, optimizer.create_state(7, weight))
    assert weight.asnumpy().tolist() == [-sum(range(hvd.size())) / hvd.size()] * 3


@pytest.mark.parametrize("process_set_of", [lambda sets: sets[0], lambda sets: sets[-1]])
def test_module(process_sets, process_set_of):
    """``Module.fit`` without a kvstore."""
    process_set = process_set_of(process_sets)
    hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    output = mx.sym.LinearRegressionOutput(hidden, mx.sym.Variable("target"), name="out")
    members = process_set.ranks if process_set.included() else [hvd.rank()]
    rows = sorted(row for rank in members for row in range(rank, BATCH, hvd.size()))

    def fit(rows, optimizer):
        batches = [array[:, rows].reshape(-1, array.shape[-1]) for array in (INPUTS, TARGETS)]
        batch = len(rows)
        data = mx.io.NDArrayIter(*batches, batch_size=batch, label_name="target")
        module = mx.mod.Module(output, label_names=["target"])
        options = {"initializer": mx.init.One(), "kvstore": None, "eval_metric": "mse"}
        module.fit(data, optimizer=optimizer, num_epoch=2, **options)
        return module.get_params()[0]["fc_weight"].asnumpy()

    inner = mx.optimizer.create("sgd", learning_rate=0.3, rescale_grad=len(members) / len(rows))
    own = list(range(hvd.rank(), BATCH, hvd.size()))
    found = fit(own, hvd.DistributedOptimizer(inner, process_set=process_set))
    joint = mx.optimizer.create("sgd", learning_rate=0.3, rescale_grad=1 / len(rows))
    np.testing.assert_allclose(found, fit(rows, joint), rtol=1e-4, atol=1e-5)
