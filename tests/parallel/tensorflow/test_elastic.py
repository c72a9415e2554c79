"""Elastic training in a world of fixed size: fail, restore, start the engine again, go on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.errors import HorovodInternalError, HostsUpdatedInterrupt
from horovod.tensorflow.elastic import TensorFlowKerasState, TensorFlowState

v1 = tf.compat.v1
STEPS = 6


@pytest.fixture(autouse=True)
def _initialised_afterwards() -> Iterator[None]:
    yield
    hvd.init()


class Plan:
    """At which steps this process fails how; each entry happens once."""

    def __init__(self, **failures: object) -> None:
        self.failures = failures
        self.calls = 0

    def at(self, place: str) -> None:
        failure = self.failures.pop(place, None)
        if failure is not None:
            raise failure


def batch_of(rank: int, step: int):
    generator = np.random.default_rng(1000 * step + rank)
    return tf.constant(generator.standard_normal((4, 3)).astype(np.float32))


class Training:
    """A Keras model, and a step that is a function."""

    def __init__(self) -> None:
        layers = tf.keras.layers
        self.model = tf.keras.Sequential([layers.Input((3,)), layers.Dense(4), layers.Dense(1)])
        generator = np.random.default_rng(3)
        self.model.set_weights(
            [generator.standard_normal(value.shape) for value in self.model.get_weights()]
        )
        self.optimizer = tf.keras.optimizers.Adam(0.01)
        self.state = TensorFlowKerasState(self.model, self.optimizer, step=0)
        self.step = tf.function(self._step)

    def _step(self, batch):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(self.model(batch) - 1.0))
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    def run(self, plan: Plan):
        @hvd.elastic.run
        def train(state):
            plan.calls += 1
            while state.step < STEPS:
                plan.at(f"before{state.step}")
                self.step(batch_of(hvd.rank(), state.step))
                plan.at(f"stepped{state.step}")
                state.step += 1
                if state.step % 2 == 0:
                    state.commit()
            return [value.tolist() for value in self.model.get_weights()]

        return train(self.state)


@pytest.fixture(scope="module")
def undisturbed():
    """Weights after training without any failure."""
    return Training().run(Plan())


def error() -> Exception:
    return HorovodInternalError("injected")


@pytest.mark.parametrize("place", ["before0", "stepped2", "before3", "stepped5"])
def test_all_ranks_fail_once(undisturbed, place):
    plan = Plan(**{place: error()})
    assert Training().run(plan) == undisturbed
    assert plan.calls == 2


def test_one_rank_fails_while_others_are_in_a_function(undisturbed):
    is_failing = hvd.rank() == hvd.size() - 1
    plan = Plan(before3=error()) if is_failing else Plan()
    assert Training().run(plan) == undisturbed
    assert plan.calls == 2


def test_new_hosts_keep_what_was_not_committed(undisturbed):
    plan = Plan(before3=HostsUpdatedInterrupt())
    assert Training().run(plan) == undisturbed
    assert plan.calls == 2


def test_rank_zero_decides_where_all_go_on():
    training = Training()
    training.model.set_weights([value + hvd.rank() for value in training.model.get_weights()])
    training.state.step = 10 + hvd.rank()
    training.state.save()
    training.state.sync()
    own = [value.tolist() for value in training.model.get_weights()]
    assert hvd.allgather_object(own) == [own] * hvd.size()
    assert training.state.step == 10
    training.model.set_weights([value * 0 for value in training.model.get_weights()])
    training.state.restore()
    assert [value.tolist() for value in training.model.get_weights()] == own


def test_disagreement_is_not_retried():
    if hvd.size() == 1:
        pytest.skip("one rank agrees with itself")
    calls = []

    @hvd.elastic.run
    def disagree(state):
        calls.append(1)
        tf.function(lambda: hvd.allreduce(tf.ones([1 + hvd.rank()]), name="disagree"))()

    with pytest.raises(tf.errors.OpError, match="shapes must match"):
        disagree(TensorFlowState([tf.Variable(1.0)]))
    assert len(calls) == 1


def test_a_session_outlives_worlds():
    plan = Plan(**({"before1": error()} if hvd.rank() == 0 else {}))
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", initializer=[float(hvd.rank())])
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
        train = optimizer.minimize(tf.reduce_sum(weight) * (hvd.rank() + 1.0))
        session.run(v1.global_variables_initializer())
        state = TensorFlowState(session=session, step=0)

        @hvd.elastic.run
        def training(state):
            plan.calls += 1
            while state.step < 3:
                plan.at(f"before{state.step}")
                session.run(train)
                state.step += 1
                state.commit()
            return session.run(weight).tolist()

        mean = sum(rank + 1 for rank in range(hvd.size())) / hvd.size()
        assert training(state) == [-3 * mean]
    assert plan.calls == 2


def test_eager_variables():
    variable = tf.Variable(float(hvd.rank()))
    plan = Plan(before1=error()) if hvd.rank() == 0 else Plan()

    @hvd.elastic.run
    def training(state):
        plan.calls += 1
        while state.step < 2:
            plan.at(f"before{state.step}")
            variable.assign_add(hvd.allreduce(tf.constant(1.0), name="one", op=hvd.Sum))
            state.step += 1
            state.commit()
        return variable.numpy()

    assert training(TensorFlowState([variable], step=0)) == 2 * hvd.size()
    assert plan.calls == 2


def test_a_compiled_function_runs_in_the_next_world(monkeypatch):
    monkeypatch.setenv("HOROVOD_ENABLE_XLA_OPS", "1")
    total = tf.function(lambda tensor: hvd.allreduce(tensor, op=hvd.Sum), jit_compile=True)
    worlds = []

    @hvd.elastic.run
    def train(state):
        worlds.append(float(total(tf.ones([]))))
        if len(worlds) == 1:
            hvd.shutdown()
        return float(total(tf.ones([])))

    assert train(TensorFlowState([tf.Variable(1.0)])) == hvd.size()
    assert worlds == [hvd.size()] * 2
