"""States of models, and training after a failure."""

import keras
import keras_cases as cases
import numpy as np
import pytest

import horovod.keras as hvd
from horovod.core import world
from horovod.errors import HorovodInternalError


def make(seed=0):
    return cases.make_model(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), seed=seed)


def train(model, **options):
    images, labels = cases.share(48, *cases.digits(192))
    own = 48 // hvd.size()
    model.fit(images, labels, batch_size=own, verbose=0, **options)


def test_save_restore_sync():
    model = make(seed=hvd.rank())
    state = hvd.elastic.KerasState(model, batch=0, epoch=hvd.rank())
    state.sync()
    assert state.epoch == 0
    assert cases.are_equal_on_all_ranks(cases.values_of(model.weights))
    before = [*cases.values_of(model.weights), *cases.state_of(model.optimizer)]
    train(model, epochs=1)
    state.batch = 5
    state.restore()
    after = [*cases.values_of(model.weights), *cases.state_of(model.optimizer)]
    assert state.batch == 0
    for found, expected in zip(after, before, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", ["KerasState", "TensorFlowKerasState"])
@pytest.mark.parametrize("begin", ["sync", "restore"])
def test_passes_since_the_last_step_are_forgotten(kind, begin):
    """A rank that joins has made none; if ranks counted on, they would step at different times."""
    if kind == "TensorFlowKerasState" and cases.BACKEND in ("torch", "jax"):
        pytest.skip("needs TensorFlow")
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2
    )
    model = cases.make_model(optimizer)
    state = getattr(hvd.elastic, kind)(model)
    before = cases.values_of(model.trainable_variables)
    ones = [np.ones(value.shape) for value in before]
    if hvd.rank() == 0:
        cases.step(optimizer, model.trainable_variables, ones)
    getattr(state, begin)()
    for change in (0, 2, 2, 4):
        cases.step(optimizer, model.trainable_variables, ones)
        for value, old in zip(cases.values_of(model.trainable_variables), before, strict=True):
            np.testing.assert_allclose(value, old - change, rtol=1e-5, atol=1e-5)


def test_model_must_be_built():
    model = cases.make_model(keras.optimizers.SGD(0.1), built=False)
    with pytest.raises(ValueError, match="Model must be built first"):
        hvd.elastic.KerasState(model)


def test_callbacks_update_then_commit():
    model = make()
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    commits = []
    commit = state.commit
    state.commit = lambda: (commits.append((state.epoch, state.batch)), commit())
    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=3),
    ]
    train(model, epochs=2, callbacks=callbacks)
    assert commits == [(0, 2), (1, 0), (1, 1), (2, 0)]
    train(model, epochs=1, callbacks=callbacks)
    assert state.epoch == 3


def test_first_epoch_after_a_restore_is_shorter():
    state = hvd.elastic.KerasState(make(), batch=3)
    callback = hvd.elastic.UpdateBatchStateCallback(state)
    callback.set_params({"steps": 10})
    callback.on_train_begin()
    callback.on_epoch_begin(0)
    assert callback.params["steps"] == 7
    callback.on_epoch_end(0)
    callback.on_epoch_begin(1)
    assert callback.params["steps"] == 10


def test_training_again_after_a_failure():
    """A rank fails in the middle of an epoch; all ranks go back to the last commit and continue."""
    model = make()
    state = hvd.elastic.KerasState(model, epoch=0)
    calls = []

    class Leave(keras.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            if len(calls) == 1 and batch == 1:
                world.shutdown()
                raise HorovodInternalError("left")

    @hvd.elastic.run
    def train_elastically(state):
        calls.append(cases.values_of(model.weights))
        is_last = hvd.rank() == hvd.size() - 1
        callbacks = [
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=100),
        ]
        train(model, epochs=2 - state.epoch, callbacks=callbacks + ([Leave()] if is_last else []))
        return state.epoch

    if hvd.size() == 1:
        pytest.skip("needs a second rank")
    try:
        assert train_elastically(state) == 2
    finally:
        world.init()
    assert len(calls) == 2
    for found, expected in zip(calls[1], calls[0], strict=True):
        np.testing.assert_array_equal(found, expected)
    assert cases.are_equal_on_all_ranks(cases.values_of(model.weights))
