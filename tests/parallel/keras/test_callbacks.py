"""Callbacks in training: averages, learning rates, momentum, checkpoints."""

import keras
import keras_cases as cases
import numpy as np
import pytest

import horovod.keras as hvd

BATCH = 48


class Rates(keras.callbacks.Callback):
    """Records the learning rate of every batch."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def on_batch_begin(self, batch, logs=None):
        rate = self.model.optimizer.learning_rate
        self.rates.append(float(cases.values_of([rate])[0]))


def train(model, callbacks, rows=4 * BATCH, **options):
    images, labels = cases.share(BATCH, *cases.digits(rows))
    batch = BATCH // hvd.size()
    options = {"epochs": 3, "verbose": 0, "shuffle": False, **options}
    return model.fit(images, labels, batch_size=batch, callbacks=callbacks, **options)


def test_metrics_are_averaged_and_others_left_alone():
    logs = {"loss": float(hvd.rank()), "count": np.int64(2 * hvd.rank()), "note": "text"}
    logs["vector"] = np.array([1.0, hvd.rank()])
    logs["nothing"] = None
    if hvd.rank() == 0:
        logs["val_loss"] = 3.0
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    mean = (hvd.size() - 1) / 2
    assert logs["loss"] == mean
    assert logs["count"] == 2 * mean
    np.testing.assert_array_equal(logs["vector"], [1.0, mean])
    assert logs["note"] == "text"
    assert logs["nothing"] is None
    assert logs.get("val_loss", 3.0) == 3.0


def test_averages_reach_the_history():
    model = cases.make_model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    history = train(model, [hvd.callbacks.MetricAverageCallback()]).history
    losses = np.asarray(hvd.allgather(np.array([history["loss"]])))
    assert (losses == losses[0]).all()


def test_warm_up_arrives_with_the_last_batch(capsys):
    model = cases.make_model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.9, momentum=0.9)))
    rates = Rates()
    warm_up = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1)
    history = train(model, [warm_up, rates]).history
    size, batches = hvd.size(), 4
    expected = [
        0.4 / size * ((number + 1) / batches * (size - 1) / 2 + 1) for number in range(2 * batches)
    ]
    np.testing.assert_allclose(rates.rates, expected + [0.4] * batches, rtol=1e-6)
    np.testing.assert_allclose(history["lr"], [expected[3], 0.4, 0.4], rtol=1e-6)
    printed = capsys.readouterr().out.count("finished gradual learning rate warmup to 0.4.")
    assert printed == (1 if hvd.rank() == 0 else 0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"multiplier": 0.5, "start_epoch": 1}, [7.0, 1.0, 0.5]),
        ({"multiplier": lambda epoch: epoch + 1, "end_epoch": 2}, [1.0, 2.0, 2.0]),
    ],
    ids=["constant", "function"],
)
def test_staircase(options, expected):
    model = cases.make_model(hvd.DistributedOptimizer(keras.optimizers.SGD(7.0)))
    rates = Rates()
    schedule = hvd.callbacks.LearningRateScheduleCallback(1.0, **options)
    history = train(model, [schedule, rates]).history
    np.testing.assert_allclose(history["lr"], expected)
    np.testing.assert_allclose(rates.rates, np.repeat(expected, 4))


def test_fractions_of_epochs():
    model = cases.make_model(hvd.DistributedOptimizer(keras.optimizers.SGD(7.0)))
    rates = Rates()
    schedule = hvd.callbacks.LearningRateScheduleCallback(
        1.0, lambda epoch: epoch, staircase=False, steps_per_epoch=4
    )
    train(model, [schedule, rates], epochs=2)
    np.testing.assert_allclose(rates.rates, np.arange(8) / 4, atol=1e-7)


def test_what_a_schedule_cannot_do():
    with pytest.raises(ValueError, match="initial_lr must be a number"):
        hvd.callbacks.LearningRateScheduleCallback(None, 2.0)
    with pytest.raises(ValueError, match=r"^LearningRateWarmupCallback: initial_lr .*'0.001'$"):
        hvd.callbacks.LearningRateWarmupCallback("0.001")
    schedule = hvd.callbacks.LearningRateScheduleCallback(1.0, 2.0, staircase=False)
    schedule.set_params({"steps": None})
    with pytest.raises(ValueError, match="steps_per_epoch"):
        schedule.on_train_begin()
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model = cases.make_model(hvd.DistributedOptimizer(keras.optimizers.SGD(decay)))
    with pytest.raises(ValueError, match="is a schedule"):
        train(model, [hvd.callbacks.LearningRateScheduleCallback(1.0, 2.0)])


def test_batches_are_counted_where_only_samples_are_known():
    """Keras 2 in a TF1 graph gives callbacks only these values."""
    schedule = hvd.callbacks.LearningRateScheduleCallback(1.0, 2.0, staircase=False)
    schedule.set_params({"steps": None, "samples": 65, "batch_size": 8})
    schedule.on_train_begin()
    assert schedule.steps_per_epoch == 9


def momentum_kinds():
    kinds = [keras.optimizers.SGD]
    return kinds if cases.IS_KERAS3 else [*kinds, keras.optimizers.legacy.SGD]


@pytest.mark.parametrize("kind", momentum_kinds(), ids=lambda kind: kind.__module__)
@pytest.mark.parametrize("corrects", [True, False])
def test_momentum_correction(kind, corrects):
    """Constant gradients: the sum of updates follows the rate at once only with the correction."""
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.build((None, 1))
    model.compile(hvd.DistributedOptimizer(kind(0.1, momentum=0.5)), lambda y, out: -out)
    schedule = hvd.callbacks.LearningRateScheduleCallback(
        0.1, lambda epoch: 10.0 if epoch else 1.0, momentum_correction=corrects
    )
    ones = np.ones((2, 1), "float32")
    model.fit(ones, ones, batch_size=1, epochs=2, verbose=0, callbacks=[schedule])
    velocity, weight = 0.0, 0.0
    for rate, factor in [(0.1, 1), (0.1, 1), (1.0, 10 if corrects else 1), (1.0, 1)]:
        velocity = 0.5 * factor * velocity + rate
        weight += velocity
    np.testing.assert_allclose(cases.values_of(model.weights)[0], [[weight]], rtol=1e-5)


def test_best_model_checkpoint(tmp_path):
    model = cases.make_model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    assert callback.filepath is None
    with pytest.raises(ValueError, match="filepath"):
        train(model, [callback])
    callback.filepath = str(tmp_path / "best.keras")
    train(model, [callback])
    loaded = hvd.load_model(callback.filepath)
    assert type(loaded.optimizer).__module__ == "horovod._keras"
