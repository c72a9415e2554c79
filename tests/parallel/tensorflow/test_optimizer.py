"""DistributedOptimizer around tf.compat.v1 optimizers: sessions, eager steps, passes, Adasum."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd

v1 = tf.compat.v1
RATE = 0.1


def batch_of(rank: int, step: int):
    generator = np.random.default_rng(1000 * step + rank)
    return generator.standard_normal((4, 3)).astype(np.float32)


def joint_batch(ranks, step: int):
    return np.concatenate([batch_of(rank, step) for rank in ranks])


def initial_values():
    generator = np.random.default_rng(7)
    return [generator.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (4, 1))]


def momentum():
    return v1.train.MomentumOptimizer(RATE, 0.9)


class Reference:
    """Momentum by hand, in one process."""

    def __init__(self) -> None:
        self.weights = [tf.Variable(value) for value in initial_values()]
        self.velocities = [np.zeros_like(value) for value in initial_values()]

    def gradients(self, batch):
        with tf.GradientTape() as tape:
            loss = loss_of(self.weights, batch)
        return [gradient.numpy() for gradient in tape.gradient(loss, self.weights)]

    def apply(self, gradients) -> None:
        for position, gradient in enumerate(gradients):
            self.velocities[position] = 0.9 * self.velocities[position] + gradient
            self.weights[position].assign_sub(RATE * self.velocities[position])


def loss_of(weights, batch):
    return tf.reduce_mean(tf.square(tf.tanh(batch @ weights[0]) @ weights[1] - 1.0))


class Graph:
    """A TF1 training script: every rank starts elsewhere, rank 0's values count."""

    def __init__(self, use_resource: bool = True, **options) -> None:
        self.batch = v1.placeholder(tf.float32, [None, 3])
        self.weights = [
            v1.get_variable(f"weight{position}", initializer=value, use_resource=use_resource)
            for position, value in enumerate(initial_values() if hvd.rank() == 0 else others())
        ]
        self.step = v1.train.get_or_create_global_step()
        self.optimizer = hvd.DistributedOptimizer(momentum(), **options)
        self.loss = loss_of(self.weights, self.batch)

    def session(self):
        return v1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)])


def others():
    return [value + hvd.rank() for value in initial_values()]


def assert_same_everywhere(arrays) -> None:
    own = [np.asarray(array).tobytes() for array in arrays]
    assert hvd.allgather_object(own) == [own] * hvd.size()


def assert_close(found, expected, tolerance=1e-4) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


OPTIONS = [
    {},
    {"groups": 2},
    {"gradient_predivide_factor": 2.0},
    {"compression": hvd.Compression.fp16},
    {"device_dense": "/cpu:0", "name": "mine", "use_locking": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_a_session_trains_as_one_process(options):
    train_as_one_process(Graph, options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TensorFlow 1's ways are old
def test_with_variables_and_control_flow_of_tensorflow_1():
    v1.disable_control_flow_v2()
    try:
        train_as_one_process(lambda **options: Graph(use_resource=False, **options), {})
    finally:
        v1.enable_control_flow_v2()


def train_as_one_process(make, options) -> None:
    reference = Reference()
    with tf.Graph().as_default():
        graph = make(**options)
        train = graph.optimizer.minimize(graph.loss, global_step=graph.step)
        with graph.session() as session:
            for number in range(5):
                session.run(train, {graph.batch: batch_of(hvd.rank(), number)})
            weights, step = session.run([graph.weights, graph.step])
    for number in range(5):
        reference.apply(reference.gradients(joint_batch(range(hvd.size()), number)))
    assert step == 5
    assert_same_everywhere(weights)
    tolerance = 5e-3 if "compression" in options else 1e-4
    assert_close(weights, reference.weights, tolerance)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("is_elastic", [False, True])
def test_passes(average, is_elastic, monkeypatch):
    if is_elastic:
        monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    reference = Reference()
    with tf.Graph().as_default():
        graph = Graph(backward_passes_per_step=2, average_aggregated_gradients=average)
        train = graph.optimizer.minimize(graph.loss, global_step=graph.step)
        with graph.session() as session:
            found = []
            for number in range(5):
                session.run(train, {graph.batch: batch_of(hvd.rank(), number)})
                found.append(session.run([graph.step, *graph.weights]))
    assert [step for step, *_ in found] == [1, 2, 3, 4, 5]
    for first in (0, 2):
        passes = [
            reference.gradients(joint_batch(range(hvd.size()), number))
            for number in (first, first + 1)
        ]
        before = [weight.numpy() for weight in reference.weights]
        assert_close(found[first][1:], before)
        share = 2 if average else 1
        reference.apply([sum(pair) / share for pair in zip(*passes, strict=True)])
        assert_close(found[first + 1][1:], reference.weights)
    assert_same_everywhere(found[-1])


def test_clipping_between_compute_and_apply():
    with tf.Graph().as_default():
        graph = Graph()
        pairs = graph.optimizer.compute_gradients(graph.loss, graph.weights)
        gradients, variables = zip(*pairs, strict=True)
        clipped, norm = tf.clip_by_global_norm(gradients, 1e-3)
        train = graph.optimizer.apply_gradients(
            list(zip(clipped, variables, strict=True)), global_step=graph.step
        )
        with graph.session() as session:
            _, found = session.run([train, norm], {graph.batch: batch_of(hvd.rank(), 0)})
            weights = session.run(graph.weights)
    expected = Reference().gradients(joint_batch(range(hvd.size()), 0))
    np.testing.assert_allclose(found, np.sqrt(sum((g * g).sum() for g in expected)), rtol=1e-4)
    assert_same_everywhere(weights)


@pytest.mark.parametrize("is_function", [False, True])
def test_eager_steps(is_function):
    reference = Reference()
    weights = [tf.Variable(value) for value in initial_values()]
    optimizer = hvd.DistributedOptimizer(momentum())

    def step(batch):
        optimizer.minimize(lambda: loss_of(weights, batch), var_list=weights)

    step = tf.function(step) if is_function else step
    for number in range(4):
        step(batch_of(hvd.rank(), number))
        reference.apply(reference.gradients(joint_batch(range(hvd.size()), number)))
    assert_same_everywhere(weights)
    assert_close(weights, reference.weights)


def test_two_optimizers_in_one_graph():
    with tf.Graph().as_default():
        first = v1.get_variable("first", initializer=[1.0, 2.0])
        second = v1.get_variable("second", initializer=[[3.0]])
        rank = float(hvd.rank())
        trains = []
        for variable in (first, second):
            optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
            trains.append(optimizer.minimize(tf.reduce_sum(variable) * rank, var_list=[variable]))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(trains)
            mean = (hvd.size() - 1) / 2
            np.testing.assert_allclose(session.run(first), [1 - mean, 2 - mean])
            np.testing.assert_allclose(session.run(second), [[3 - mean]])


@pytest.mark.parametrize("as_dense", [False, True])
@pytest.mark.parametrize("passes", [1, 2])
def test_rows(as_dense, passes):
    with tf.Graph().as_default():
        table = v1.get_variable("table", initializer=tf.zeros([4, 1]))
        rows = tf.gather(table, [0, hvd.rank() % 4])
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0),
            sparse_as_dense=as_dense,
            backward_passes_per_step=passes,
        )
        if passes > 1 and not as_dense:
            with pytest.raises(ValueError, match="use sparse_as_dense=True"):
                optimizer.minimize(tf.reduce_sum(rows))
            return
        train = optimizer.minimize(tf.reduce_sum(rows))
        with v1.train.MonitoredTrainingSession() as session:
            for _ in range(passes):
                session.run(train)
            found = session.run(table)[:, 0]
    counts = np.zeros(4)
    for rank in range(hvd.size()):
        counts[0] += 1
        counts[rank % 4] += 1
    np.testing.assert_allclose(found, -passes * counts / hvd.size(), rtol=1e-6)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_local_variables(scale, passes):
    with tf.Graph().as_default():
        shared = v1.get_variable("shared", initializer=0.0)
        local = v1.get_variable("local", initializer=0.0)
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0),
            op=hvd.Sum,
            scale_local_gradients=scale,
            backward_passes_per_step=passes,
        )
        optimizer.register_local_var(local)
        train = optimizer.minimize((shared + local) * (hvd.rank() + 1.0))
        with v1.train.MonitoredTrainingSession() as session:
            for _ in range(passes):
                session.run(train)
            found = session.run([shared, local])
    own = passes * (hvd.rank() + 1) / (hvd.size() if scale else 1)
    total = passes * sum(rank + 1 for rank in range(hvd.size()))
    np.testing.assert_allclose(found, [-total, -own], rtol=1e-6)


def test_process_sets(process_sets):
    for process_set in process_sets:
        weight = tf.Variable(0.0)
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), process_set=process_set
        )
        scale = hvd.rank() + 1.0
        optimizer.minimize(lambda weight=weight, scale=scale: weight * scale, var_list=[weight])
        ranks = process_set.ranks if process_set.included() else [hvd.rank()]
        expected = -sum(rank + 1 for rank in ranks) / len(ranks)
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-6)


def combined(own):
    """What Adasum makes of all ranks' changes."""
    return hvd.allreduce(tf.constant(own), op=hvd.Adasum).numpy()


@pytest.mark.parametrize("mode", ["eager", "function", "session", "references", "passes"])
def test_adasum(mode):
    """Every rank's own momentum step, combined, twice."""
    direction = np.array([1.0, 2.0 + hvd.rank(), -1.0], np.float32)
    changes = []
    velocity = np.zeros(3, np.float32)
    for _ in range(2):
        velocity = 0.9 * velocity + direction
        changes.append(combined(-RATE * velocity))
    expected = 5.0 + sum(changes)
    np.testing.assert_allclose(adasum_steps(mode, direction), expected, rtol=1e-5)


def adasum_steps(mode: str, direction):
    if mode in ("session", "references", "passes"):
        passes = 2 if mode == "passes" else 1
        return adasum_in_a_session(passes, direction, use_resource=mode != "references")
    weight, step = tf.Variable([5.0, 5.0, 5.0]), tf.Variable(0, dtype=tf.int64)
    optimizer = hvd.DistributedOptimizer(momentum(), op=hvd.Adasum)

    def train():
        optimizer.minimize(
            lambda: tf.reduce_sum(weight * direction), var_list=[weight], global_step=step
        )

    train = tf.function(train) if mode == "function" else train
    for _ in range(2):
        train()
    assert step.numpy() == 2
    return weight.numpy()


def adasum_in_a_session(passes: int, direction, use_resource: bool):
    with tf.Graph().as_default():
        initial = [5.0, 5.0, 5.0]
        weight = v1.get_variable("weight", initializer=initial, use_resource=use_resource)
        step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(
            momentum(), op=hvd.Adasum, backward_passes_per_step=passes
        )
        loss = tf.reduce_sum(weight * direction) / passes
        train = optimizer.minimize(loss, global_step=step)
        with v1.train.MonitoredTrainingSession() as session:
            for number in range(2 * passes):
                session.run(train)
                assert session.run(step) == number + 1
            return session.run(weight)


def test_adasum_and_local_variables():
    shared, local = tf.Variable([1.0, 1.0]), tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum)
    optimizer.register_local_var(local)
    scale = hvd.rank() + 1.0
    optimizer.minimize(
        lambda: (tf.reduce_sum(shared) + tf.reduce_sum(local)) * scale, var_list=[shared, local]
    )
    assert local.numpy().tolist() == [1.0 - scale]
    np.testing.assert_allclose(shared.numpy(), 1.0 + combined(np.full(2, -scale, np.float32)))
