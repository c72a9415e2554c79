"""DistributedOptimizer: which arguments go together, and what TF1 optimizers hand on."""

from __future__ import annotations

import types

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import optimizer as module

v1 = tf.compat.v1


def sgd():
    return v1.train.GradientDescentOptimizer(0.5)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "needs op=Average"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Adasum}, "needs op=Average"),
        ({"op": hvd.Adasum, "average_aggregated_gradients": True}, "does not work with op=Adasum"),
        ({"backward_passes_per_step": 2}, "needs a graph"),
        ({"backward_passes_per_step": 0}, "at least 1"),
        ({"groups": 0}, "number > 0"),
        ({"groups": "all"}, "number > 0"),
        ({"groups": [[1.0]]}, "lists of variables"),
        ({"op": 9}, "expected one of"),
    ],
)
def test_bad_arguments(options, text):
    with pytest.raises(ValueError, match=text):
        hvd.DistributedOptimizer(sgd(), **options)


def test_a_variable_in_two_groups():
    variable = tf.Variable(1.0)
    with pytest.raises(ValueError, match="one group only"):
        hvd.DistributedOptimizer(sgd(), groups=[[variable], [variable]])


def test_predivide_on_rocm(monkeypatch):
    monkeypatch.setattr("horovod.core.operations.rocm_built", lambda: True)
    with pytest.raises(ValueError, match="ROCm"):
        hvd.DistributedOptimizer(sgd(), gradient_predivide_factor=2.0)


def test_adasum_on_a_process_set():
    with pytest.raises(NotImplementedError, match="global process set"):
        hvd.DistributedOptimizer(sgd(), op=hvd.Adasum, process_set=hvd.ProcessSet([0]))


def test_num_groups_is_deprecated():
    with pytest.warns(DeprecationWarning, match="give the number as groups"):
        hvd.DistributedOptimizer(sgd(), num_groups=2)


@pytest.mark.parametrize("optimizer", [None, "sgd", tf.Variable(1.0)])
def test_no_optimizer(optimizer):
    with pytest.raises(ValueError, match="Keras optimizer, found"):
        hvd.DistributedOptimizer(optimizer)


def test_wrapped_twice():
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd()))


def test_adasum_with_keras():
    with pytest.raises(ValueError, match="does not work with Keras"):
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), op=hvd.Adasum)


def test_keras_gets_every_argument(monkeypatch):
    """Also ``op`` and ``groups``."""
    given = {}
    fake = types.SimpleNamespace(DistributedOptimizer=lambda optimizer, **kw: given.update(kw))
    monkeypatch.setattr(module, "import_module", {"horovod.tensorflow.keras": fake}.__getitem__)
    options = {
        "name": "mine",
        "device_dense": "/cpu:0",
        "device_sparse": "/cpu:0",
        "compression": hvd.Compression.fp16,
        "sparse_as_dense": True,
        "backward_passes_per_step": 3,
        "op": hvd.Sum,
        "gradient_predivide_factor": 1.0,
        "average_aggregated_gradients": True,
        "groups": 2,
        "process_set": hvd.global_process_set,
        "scale_local_gradients": False,
    }
    hvd.DistributedOptimizer(tf.keras.optimizers.Adam(), **options)
    assert given == options


def test_names():
    assert hvd.DistributedOptimizer(sgd()).get_name() == "DistributedGradientDescentOptimizer"
    assert hvd.DistributedOptimizer(sgd(), name="mine").get_name() == "mine"


def test_what_is_handed_on(world):
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", initializer=[1.0, 2.0])
        optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))
        optimizer.minimize(tf.reduce_sum(weight))
        assert optimizer.get_slot_names() == ["momentum"]
        slot = optimizer.get_slot(weight, "momentum")
        assert [variable is slot for variable in optimizer.variables()] == [True]


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_eager_steps_in_a_world_of_one(world, op):
    weight = tf.Variable([1.0, 2.0])
    optimizer = hvd.DistributedOptimizer(sgd(), op=op)
    step = tf.Variable(0, dtype=tf.int64)
    optimizer.minimize(lambda: tf.reduce_sum(weight * weight), global_step=step)
    assert weight.numpy().tolist() == [0.0, 0.0]
    assert step.numpy() == 1


def test_operations_of_a_step(ops):
    weights = [tf.Variable([1.0], name=name) for name in ("a", "b")]
    local = tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(sgd(), op=hvd.Sum)
    optimizer.register_local_var(local)
    pairs = optimizer.compute_gradients(
        lambda: weights[0] + 2 * weights[1] + 4 * local, [*weights, local]
    )
    assert [gradient.numpy().tolist() for gradient, _ in pairs] == [[2.0], [4.0], [2.0]]
    assert ops.names == [
        ["DistributedGradientDescentOptimizer/0.a", "DistributedGradientDescentOptimizer/1.b"]
    ]


def test_passes_skip_and_count(world):
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", initializer=[8.0])
        step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(
            sgd(), backward_passes_per_step=2, average_aggregated_gradients=True
        )
        train = optimizer.minimize(tf.reduce_sum(weight), global_step=step)
        assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [train]
        with v1.train.MonitoredTrainingSession() as session:
            found = []
            for _ in range(4):
                session.run(train)
                found.append((session.run(weight).tolist(), session.run(step)))
    assert found == [([8.0], 1), ([7.5], 2), ([7.5], 3), ([7.0], 4)]
