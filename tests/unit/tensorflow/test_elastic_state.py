"""Elastic states and ``run`` in a world of one."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.core.port import keep_failure
from horovod.elastic import State
from horovod.errors import HorovodInternalError, MismatchError, PeerLostError
from horovod.tensorflow.elastic import TensorFlowKerasState, TensorFlowState, run

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def _initialised(world):
    """Every test has a world; ``run`` may end it and begin another one."""


def make_model():
    model = tf.keras.Sequential([tf.keras.layers.Dense(3), tf.keras.layers.Dense(1)])
    model.build((None, 2))
    return model


def train(model, optimizer) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(tf.ones([4, 2])) - 1.0))
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def weights(model) -> list:
    return [value.tolist() for value in model.get_weights()]


def make_optimizer(kind):
    if kind == "legacy":
        try:
            return tf.keras.optimizers.legacy.Adam(0.1)
        except ImportError:
            pytest.skip("Keras 3 has no legacy optimizers")
    return tf.keras.optimizers.Adam(0.1)


@pytest.mark.parametrize("kind", ["current", "legacy"])
def test_training_repeats_exactly_after_each_restore(kind):
    model, optimizer = make_model(), make_optimizer(kind)
    state = TensorFlowKerasState(model, optimizer, batch=0)
    before = weights(model)
    train(model, optimizer)
    first = weights(model)
    for _ in range(2):
        state.batch = 7
        state.restore()
        assert state.batch == 0
        assert weights(model) == before
        train(model, optimizer)
        assert weights(model) == first
    state.batch = 1
    state.commit()
    train(model, optimizer)
    state.restore()
    assert (weights(model), state.batch) == (first, 1)
    state.sync()
    assert (weights(model), state.batch) == (first, 1)


def test_the_models_own_optimizer():
    model = make_model()
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    state = TensorFlowKerasState(model)
    assert state.model is model
    assert state.optimizer is model.optimizer
    assert TensorFlowKerasState(make_model()).optimizer is None


def test_the_model_must_be_built():
    with pytest.raises(ValueError, match="Model must be built first"):
        TensorFlowKerasState(tf.keras.Sequential([tf.keras.layers.Dense(3)]))


def test_variables():
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3)]
    state = TensorFlowState(variables, epoch=1)
    variables[0].assign([5.0, 6.0])
    state.epoch = 2
    state.restore()
    assert variables[0].numpy().tolist() == [1.0, 2.0]
    assert state.epoch == 1
    variables[1].assign(4)
    state.save()
    variables[1].assign(9)
    state.restore()
    assert variables[1].numpy() == 4
    variables[1].assign(5)
    state.sync()
    variables[1].assign(9)
    state.restore()
    assert variables[1].numpy() == 5


@pytest.mark.parametrize("is_given", [True, False])
def test_variables_of_a_session(is_given):
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("weight", initializer=[1.0, 2.0])
        session.run(v1.global_variables_initializer())
        state = TensorFlowState(session=session if is_given else None, epoch=0)
        assert [one is variable for one in state.variables] == [True]
        size = len(session.graph.get_operations())
        for _ in range(2):
            session.run(variable.initializer)
            session.run(v1.assign(variable, [3.0, 4.0]))
            state.sync()
            session.run(variable.initializer)
            state.restore()
            assert session.run(variable).tolist() == [3.0, 4.0]
            state.commit()
        assert len(session.graph.get_operations()) - size < 30


def test_a_graph_without_session():
    with tf.Graph().as_default():
        v1.get_variable("weight", initializer=[1.0])
        with pytest.raises(ValueError, match="need a session"):
            TensorFlowState()


def test_another_process_goes_on_from_a_file(tmp_path):
    model, optimizer = make_model(), make_optimizer("current")
    state = TensorFlowKerasState(model, optimizer, batch=0)
    train(model, optimizer)
    state.batch = 1
    state.commit()
    state.save(tmp_path / "state")
    train(model, optimizer)

    other, its_optimizer = make_model(), make_optimizer("current")
    loaded = TensorFlowKerasState(other, its_optimizer, batch=0)
    loaded.load(tmp_path / "state")
    assert loaded.batch == 1
    train(other, its_optimizer)
    assert weights(other) == weights(model)

    wider = tf.keras.Sequential([tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)])
    wider.build((None, 2))
    with pytest.raises(ValueError, match=r"variable 0 has shape \[2, 3\] in the file, \[2, 4\]"):
        TensorFlowKerasState(wider, make_optimizer("current"), batch=0).load(tmp_path / "state")


def test_variables_of_any_dtype_and_of_a_session_go_to_a_file(tmp_path):
    variables = [tf.Variable([1.5, 2.0], dtype=tf.bfloat16), tf.Variable(3), tf.Variable(True)]
    TensorFlowState(variables, epoch=1).save(tmp_path / "eager")
    values = [variable.numpy().tolist() for variable in variables]
    for variable in variables:
        variable.assign(tf.zeros_like(variable))
    TensorFlowState(variables, epoch=0).load(tmp_path / "eager")
    assert [variable.numpy().tolist() for variable in variables] == values
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("weight", initializer=[1.0, 2.0])
        session.run(v1.global_variables_initializer())
        state = TensorFlowState(session=session, epoch=0)
        state.save(tmp_path / "graph")
        session.run(v1.assign(variable, [3.0, 4.0]))
        state.load(tmp_path / "graph")
        assert session.run(variable).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("part", ["variables", "objects"])
def test_a_sync_that_fails_leaves_what_was_saved(monkeypatch, part):
    variable = tf.Variable(1.0)
    state = TensorFlowState([variable], epoch=1)

    def fail(*_: object) -> None:
        variable.assign(5.0)
        keep_failure(PeerLostError("rank 1 died"))
        raise in_graph()

    if part == "variables":
        monkeypatch.setattr(state, "_broadcast", fail)
    else:
        monkeypatch.setattr(state, "_broadcast", lambda: variable.assign(5.0))
        monkeypatch.setattr(state, "_bcast_object", lost)
    state.epoch = 2
    with pytest.raises(HorovodInternalError, match="rank 1 died"):
        state.sync()
    state.restore()
    assert (variable.numpy(), state.epoch) == (1.0, 1)


def lost(*_: object) -> None:
    raise HorovodInternalError("rank 1 died")


@pytest.mark.parametrize("place", ["sync", "callback"])
def test_a_peer_lost_outside_of_the_function_is_a_failure_too(monkeypatch, place):
    state = TensorFlowState([tf.Variable(1.0)], epoch=1)
    failures = [in_graph()]
    broadcast, calls = state._broadcast, []

    def fail_once() -> None:
        if failures:
            keep_failure(PeerLostError("rank 1 died"))
            raise failures.pop()
        broadcast()

    if place == "sync":
        monkeypatch.setattr(state, "_broadcast", fail_once)
    else:
        state.register_reset_callbacks([fail_once])

    @run
    def training(state):
        calls.append(state.epoch)
        if place == "callback" and len(calls) == 1:
            raise HorovodInternalError("for a reset")

    training(state)
    assert failures == []
    assert calls == [1] if place == "sync" else [1, 1]


class Counting(State):
    def __init__(self) -> None:
        super().__init__(lambda value: value, lambda: 0)
        self.restored = 0

    def save(self) -> None:
        pass

    def restore(self) -> None:
        self.restored += 1

    def sync(self) -> None:
        pass


def in_graph():
    return tf.errors.UnknownError(None, None, "Graph execution error:\n[[node X]]")


@pytest.mark.parametrize(
    "error",
    [
        in_graph(),
        tf.errors.AbortedError(None, None, "shut down"),
        tf.errors.InternalError(None, None, "of XLA"),
        HorovodInternalError("injected"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_failed_collectives_are_retried(error):
    failures = [error]

    @run
    def training(state):
        if failures:
            keep_failure(PeerLostError("rank 1 died"))
            raise failures.pop()
        return hvd.size()

    state = Counting()
    assert training(state) == 1
    assert state.restored == 1


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.UnknownError(None, None, "could not read the file"),
        tf.errors.AbortedError(None, None, "the step was aborted"),
        tf.errors.FailedPreconditionError(None, None, "allreduce 'x': shapes must match"),
        KeyError("epoch"),
    ],
    ids=str,
)
def test_other_errors_leave(error):
    @run
    def training(state):
        raise error

    state = Counting()
    with pytest.raises(type(error)) as caught:
        training(state)
    assert caught.value is error
    assert state.restored == 0


def test_a_disagreement_of_ranks_leaves():
    @run
    def training(state):
        keep_failure(MismatchError("allreduce 'x': shapes must match on all ranks"))
        raise in_graph()

    state = Counting()
    with pytest.raises(MismatchError, match="shapes must match"):
        training(state)
    assert state.restored == 0


def test_arguments_and_name_are_kept():
    @run
    def training(state, factor, *, shift):
        """Train."""
        return factor + shift

    assert training(Counting(), 2, shift=np.float32(3)) == 5
    assert (training.__name__, training.__doc__) == ("training", "Train.")
