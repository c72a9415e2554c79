"""A fork of the original's Keras module over ``horovod._keras``."""

import keras
import keras_cases as cases
import numpy as np
import pytest

import horovod._keras as implementation
import horovod._keras.callbacks as callbacks
import horovod._keras.elastic as elastic
import horovod.keras as hvd

BACKEND = keras.backend


class Broadcast(callbacks.BroadcastGlobalVariablesCallbackImpl, keras.callbacks.Callback):
    def __init__(self, root_rank, device=""):
        super().__init__(BACKEND, root_rank, device)


class Metrics(callbacks.MetricAverageCallbackImpl, keras.callbacks.Callback):
    def __init__(self, device=""):
        super().__init__(BACKEND, device)


class Schedule(callbacks.LearningRateScheduleCallbackImpl, keras.callbacks.Callback):
    def __init__(self, initial_lr, multiplier, **options):
        super().__init__(BACKEND, initial_lr, multiplier, **options)


class Warmup(callbacks.LearningRateWarmupCallbackImpl, keras.callbacks.Callback):
    def __init__(self, initial_lr, warmup_epochs=5):
        super().__init__(BACKEND, initial_lr, warmup_epochs)


class Commit(elastic.CommitStateCallbackImpl, keras.callbacks.Callback):
    def __init__(self, state, batches_per_commit=1):
        super().__init__(BACKEND, state, batches_per_commit)


def distributed(optimizer, compression=hvd.Compression.none, name=None):
    options = (name, "", "", compression, False, 1.0, hvd.Average)
    return implementation.create_distributed_optimizer(keras, optimizer, *options)


class State:
    commits = 0

    def commit(self):
        self.commits += 1


def test_training():
    model = cases.make_model(distributed(keras.optimizers.SGD(0.1)), seed=hvd.rank())
    images, labels = cases.share(48, *cases.digits(4 * 48))
    state = State()
    found = model.fit(
        images,
        labels,
        batch_size=48 // hvd.size(),
        epochs=3,
        verbose=0,
        callbacks=[
            Broadcast(0),
            Metrics(),
            Warmup(0.4, warmup_epochs=1),
            Schedule(0.4, lambda epoch: 0.5, start_epoch=2),
            Commit(state, 2),
        ],
    ).history
    assert found["lr"] == pytest.approx([0.4, 0.4, 0.2])
    assert state.commits == 3 * (2 + 1)
    assert cases.are_equal_on_all_ranks(cases.values_of(model.weights))
    losses = np.asarray(hvd.allgather(np.array([found["loss"]])))
    assert (losses == losses[0]).all()


def test_values():
    own, last = np.full(2 * hvd.size(), hvd.rank() + 1.0), hvd.size() - 1
    total = sum(range(1, hvd.size() + 1))
    none = hvd.Compression.none
    summed = implementation.allreduce(BACKEND, own, "fork", None, 1.0, 2.0, hvd.Sum, none)
    assert (np.asarray(summed) == 2 * total).all()
    rows = implementation.allgather(BACKEND, own[:1], "fork")
    assert np.asarray(rows).tolist() == [rank + 1.0 for rank in range(hvd.size())]
    assert (np.asarray(implementation.broadcast(BACKEND, own, last, "fork")) == last + 1).all()
    part = implementation.reducescatter(BACKEND, own, "fork", hvd.Sum)
    assert np.asarray(part).tolist() == [total] * 2


def test_load_model(tmp_path):
    model = cases.make_model(distributed(keras.optimizers.Adam(0.01)))
    images, labels = cases.share(48, *cases.digits(48))
    model.fit(images, labels, verbose=0)
    model.save(tmp_path / "model.keras")

    def wrap_optimizer(kind):
        return lambda **config: distributed(kind(**config), name="loaded")

    path = str(tmp_path / "model.keras")
    loaded = implementation.load_model(keras, wrap_optimizer, {"keras"}, path, None, None)
    assert type(loaded.optimizer).__module__ == "horovod._keras"
    assert loaded.optimizer._hvd_name == "loaded"
    pairs = zip(cases.state_of(loaded.optimizer), cases.state_of(model.optimizer), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)


def test_names_that_are_not_there():
    with pytest.raises(AttributeError, match="has no attribute 'walk'"):
        implementation.walk  # noqa: B018
