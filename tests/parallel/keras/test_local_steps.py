"""Local steps in ``fit``: what a simulation of all ranks comes to, ranks that differ, mistakes."""

import keras
import keras_cases as cases
import numpy as np
import pytest
from local_steps_reference import CASES, INNER_LR, SHAPES, initial, reference, target

import horovod.keras as hvd
from horovod.core import world
from horovod.core.process_sets import add_process_set, remove_process_set
from horovod.errors import HorovodInternalError, MismatchError

STEPS = 13
STREAMING = CASES["streaming"][0]
ELEMENTS = sum(int(np.prod(shape)) for shape in SHAPES)
SGD = keras.optimizers.SGD
needs_others = pytest.mark.skipif("hvd.size() == 1", reason="needs ranks that differ")


class Points(keras.layers.Layer):
    """All of its weights, flat and in a row, for each row of the input."""

    def build(self, _):
        for index, shape in enumerate(SHAPES):
            value = keras.initializers.Constant(initial()[index])
            setattr(
                self, f"p{index}", self.add_weight(shape=shape, initializer=value, name=f"p{index}")
            )
        self.built = True

    def call(self, rows):
        if cases.IS_KERAS3:
            flat = keras.ops.concatenate([keras.ops.reshape(w, (-1,)) for w in self.weights])
        else:
            import tensorflow as tf

            flat = tf.concat([tf.reshape(w, (-1,)) for w in self.weights], 0)
        return flat + 0 * rows


def half_squared_distance(targets, points):
    total = keras.ops.sum if cases.IS_KERAS3 else __import__("tensorflow").reduce_sum
    return total((points - targets) ** 2, axis=-1) / 2


def make_model(dtype="float32", **options):
    """A model that makes the reference's steps when it is given the targets, row by row."""
    model = keras.Sequential([Points(dtype=dtype)])
    model.build((None, ELEMENTS))
    model.compile(SGD(INNER_LR), half_squared_distance, **options)
    return model


def rows(steps, rank):
    """The targets of a rank's steps."""
    found = [
        np.concatenate([target(rank, step, i).ravel() for i in range(len(SHAPES))])
        for step in range(1, steps + 1)
    ]
    return np.array(found, "float32")


def fit(model, *callbacks, steps=STEPS):
    goals = rows(steps, hvd.rank())
    model.fit(goals, goals, batch_size=1, shuffle=False, verbose=0, callbacks=list(callbacks))
    return cases.values_of(model.weights)


class Recorder(keras.callbacks.Callback):
    """Keeps what the model has after each batch."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        getattr(self.model, "jax_state_sync", int)()
        self.values.append(cases.values_of(self.model.weights))


def assert_close(found, expected, rtol=2e-5):
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(value, np.float64), wanted, rtol, rtol)


@pytest.mark.parametrize("case", CASES)
def test_it_comes_to_what_a_simulation_comes_to(case):
    recorder = Recorder()
    callback = hvd.callbacks.DiLoCoCallback(**CASES[case][0])
    found = fit(make_model(), callback, recorder)
    expected = reference(case, hvd.size())
    for values in recorder.values:
        assert_close(values, expected.run(1)[hvd.rank()])
    assert_close(found, expected.finish()[hvd.rank()])
    assert cases.are_equal_on_all_ranks(found)
    assert callback.local_step == STEPS


@pytest.mark.parametrize("case", ["every step", "streaming"])
def test_the_next_batch_goes_on_from_what_was_agreed(case):
    """No other callback reads the variables, which JAX keeps out of the model between batches."""
    found = fit(make_model(), hvd.callbacks.DiLoCoCallback(**CASES[case][0]))
    expected = reference(case, hvd.size())
    expected.run(STEPS)
    assert_close(found, expected.finish()[hvd.rank()])


def test_agreed_parameters_for_an_evaluation():
    callback = hvd.callbacks.DiLoCoCallback(sync_every=3)
    goals = rows(STEPS, hvd.rank())
    agreed, losses = [], []

    class Evaluate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            with callback.agreed_parameters():
                agreed.append(cases.values_of(self.model.weights))

        def on_epoch_end(self, epoch, logs=None):
            with callback.agreed_parameters():
                losses.append(self.model.evaluate(goals, goals, batch_size=1, verbose=0))

    recorder = Recorder()
    found = fit(make_model(), callback, Evaluate(), recorder)
    expected = reference("plain", hvd.size())
    for step, (values, own) in enumerate(zip(agreed, recorder.values, strict=True), 1):
        assert cases.are_equal_on_all_ranks(values)
        assert_close(own, expected.run(1)[hvd.rank()])
        assert_close(values, expected.agreed)
        assert step % 3 == 0 or not np.array_equal(values[0], own[0])
    point = np.concatenate([np.ravel(value) for value in expected.agreed])
    np.testing.assert_allclose(losses, [np.mean(np.sum((point - goals) ** 2, 1)) / 2], 1e-5)
    assert_close(found, expected.finish()[hvd.rank()])


def test_local_sgd_averages_what_any_optimizer_has_made():
    images, labels = cases.share(48, *cases.digits(192))
    batch = 48 // hvd.size()
    options = {"batch_size": batch, "verbose": 0, "shuffle": False}
    alone, together = (cases.make_model(keras.optimizers.Adam(0.01)) for _ in range(2))
    alone.fit(images[: 2 * batch], labels[: 2 * batch], **options)
    callback = hvd.callbacks.LocalSGDCallback(sync_every=2)
    together.fit(images[: 2 * batch], labels[: 2 * batch], callbacks=[callback], **options)
    expected = [hvd.allreduce(value) for value in cases.values_of(alone.weights)]
    assert_close(cases.values_of(together.weights), expected, 1e-5)
    together.fit(images, labels, epochs=2, callbacks=[callback], **options)
    assert callback.local_step == 8
    assert cases.are_equal_on_all_ranks(cases.values_of(together.weights))


def compressors():
    return [name for name in ("fp16", "bf16", "int8") if hasattr(hvd.Compression, name)]


@pytest.mark.parametrize("name", compressors())
def test_compression_is_of_the_outer_gradients(name):
    compression = getattr(hvd.Compression, name)
    callback = hvd.callbacks.DiLoCoCallback(3, compression=compression)
    before = hvd.metrics()["allreduce_bytes"]
    found = fit(make_model(), callback, steps=3)
    itemsize = 4 if name == "int8" else 2  # int8 is for links between hosts
    assert hvd.metrics()["allreduce_bytes"] - before == itemsize * ELEMENTS
    assert cases.are_equal_on_all_ranks(found)
    assert_close(found, reference("plain", hvd.size()).run(3)[hvd.rank()], 0.02)


def test_half_precision_has_agreed_values_in_float32():
    recorder = Recorder()
    callback = hvd.callbacks.LocalSGDCallback(sync_every=1)
    found = fit(make_model("bfloat16"), callback, recorder, steps=4)
    assert cases.are_equal_on_all_ranks(found)
    expected = reference("every step", hvd.size())
    expected.outer_lr, expected.outer_momentum = 1.0, 0.0
    assert_close(found, expected.run(4)[hvd.rank()], 0.05)


@pytest.mark.parametrize("place", ["none", "before", "after"])
def test_ranks_start_from_the_first_one(place):
    images, labels = cases.share(48, *cases.digits(192))
    model = cases.make_model(SGD(0.0), seed=hvd.rank())
    expected = cases.values_of(cases.make_model(seed=0).weights)
    callbacks = [hvd.callbacks.DiLoCoCallback(sync_every=3)]
    if place != "none":
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        callbacks.insert(0 if place == "before" else 1, broadcast)
    model.fit(images, labels, batch_size=48 // hvd.size(), verbose=0, callbacks=callbacks)
    assert_close(cases.values_of(model.weights), expected, 1e-6)


def test_statistics_stay_those_of_a_rank():
    model = keras.Sequential([keras.layers.BatchNormalization(name="norm")])
    model.build((None, 2))
    model.compile(SGD(0.1), "mse")
    inputs = np.full((4, 2), 1.0 + hvd.rank(), "float32")
    callback = hvd.callbacks.LocalSGDCallback(sync_every=2)
    model.fit(inputs, inputs, batch_size=1, verbose=0, callbacks=[callback])
    assert cases.are_equal_on_all_ranks(cases.values_of(model.trainable_variables))
    means = np.asarray(hvd.allgather(cases.values_of([model.layers[0].moving_mean])[0][None]))
    assert len(np.unique(means)) == hvd.size()


def test_each_fit_begins_anew():
    callback = hvd.callbacks.DiLoCoCallback(sync_every=3)
    model = make_model()
    fit(model, callback, steps=3)
    again = reference("plain", hvd.size())
    start = again.run(3)[0]
    assert_close(cases.values_of(model.weights), start)
    model.set_weights([np.asarray(value) for value in initial()])
    assert_close(fit(model, callback, steps=3), start)
    assert callback.local_step == 3


def test_a_loop_of_ones_own_calls_the_methods():
    model, callback = make_model(), hvd.callbacks.DiLoCoCallback(**STREAMING)
    callback.set_model(model)
    callback.on_train_begin()
    for number, goal in enumerate(rows(STEPS, hvd.rank())):
        model.train_on_batch(goal[None], goal[None])
        callback.on_train_batch_end(number)
    callback.on_train_end()
    expected = reference("streaming", hvd.size())
    expected.run(STEPS)
    assert_close(cases.values_of(model.weights), expected.finish()[hvd.rank()])


def test_what_an_interrupted_fit_had_under_way_is_forgotten():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 6:
                raise KeyError("stop")

    model = make_model()
    callback = hvd.callbacks.DiLoCoCallback(**STREAMING)
    with pytest.raises(KeyError):
        fit(model, callback, Stop())
    model.set_weights([np.asarray(value) for value in initial()])
    expected = reference("streaming", hvd.size())
    expected.run(STEPS)
    assert_close(fit(model, callback), expected.finish()[hvd.rank()])


@needs_others
def test_a_process_set():
    chosen = add_process_set([0])
    callback = hvd.callbacks.DiLoCoCallback(3, process_set=chosen)
    found = fit(make_model(), callback, steps=3)
    hvd.allreduce(1.0)
    remove_process_set(chosen)
    if hvd.rank() == 0:
        assert_close(found, reference("plain", 1).run(3)[0])
    else:
        assert_close(found, fit(make_model(), steps=3), 1e-6)


@needs_others
def test_ranks_with_other_arguments_or_batches_are_told_both():
    callback = hvd.callbacks.DiLoCoCallback(sync_every=3 if hvd.rank() else 2)
    with pytest.raises(ValueError, match=r"rank \d has sync_every=3, rank 0 has sync_every=2"):
        fit(make_model(), callback)
    callback = hvd.callbacks.DiLoCoCallback(sync_every=2)
    text = r"DiLoCoCallback: rank \d has batches_per_epoch=5, rank 0 has batches_per_epoch=4"
    with pytest.raises(ValueError, match=text):
        fit(make_model(), callback, steps=5 if hvd.rank() else 4)


@needs_others
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("steps", [(4, 5), (3, 9), (5, 6)])
def test_ranks_that_are_out_of_step_are_told(steps):
    """Keras does not know the number of batches before."""
    callback = hvd.callbacks.LocalSGDCallback(sync_every=4)
    goals = rows(steps[min(hvd.rank(), 1)], hvd.rank())
    batches = ((goal[None], goal[None]) for goal in goals)
    text = r"LocalSGDCallback: all ranks must train equally many batches \(shapes"
    with pytest.raises(MismatchError, match=text):
        make_model().fit(batches, shuffle=False, verbose=0, callbacks=[callback])


@needs_others
def test_elastic_training_begins_anew_from_the_last_commit():
    model = make_model()
    state = hvd.elastic.KerasState(model, epoch=0)
    starts = []

    class Leave(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if len(starts) == 1 and batch == 5 and hvd.rank() == 1:
                world.shutdown()
                raise HorovodInternalError("left")

    @hvd.elastic.run
    def train(state):
        starts.append(cases.values_of(model.weights))
        callback = hvd.callbacks.DiLoCoCallback(sync_every=4, overlap=1)
        commit = hvd.elastic.CommitStateCallback(state, batches_per_commit=4)
        return fit(model, callback, Leave(), commit)

    try:
        found = train(state)
    finally:
        world.init()
    assert len(starts) == 2
    assert cases.are_equal_on_all_ranks(starts[1])
    assert not np.array_equal(starts[0][0], starts[1][0])
    assert cases.are_equal_on_all_ranks(found)


def mistakes():
    yield {"sync_every": 0}, "DiLoCoCallback: sync_every must be a number of at least 1, found 0"
    yield {"sync_every": 2, "overlap": 2}, "overlap must be in 0 to 1 with sync_every=2, found 2"
    yield {"sync_every": 2, "outer_momentum": 1.0}, "outer_momentum must be in"
    yield {"sync_every": 2, "compression": "fp16"}, "Compression.fp16, found 'fp16'"
    yield {"sync_every": 2, "process_set": [0]}, r"must be a ProcessSet, found \[0\]"
    for name in ("topk", "powersgd"):
        kind = getattr(hvd.Compression, name, None)
        for compression in [] if kind is None else [kind, kind()]:
            text = rf"compression={kind.__name__} keeps errors, .*; use none, fp16, bf16, int8"
            yield {"sync_every": 2, "compression": compression}, text


@pytest.mark.parametrize(("arguments", "text"), list(mistakes()))
def test_arguments_that_cannot_be_right(arguments, text):
    with pytest.raises(ValueError, match=text):
        hvd.callbacks.DiLoCoCallback(**arguments)


def test_models_that_cannot_be_trained_so():
    callback = hvd.callbacks.LocalSGDCallback(sync_every=8, fragments=6)
    with pytest.raises(ValueError, match=r"fragments must be at most .* which is 5, found 6"):
        fit(make_model(), callback)
    callback = hvd.callbacks.LocalSGDCallback(sync_every=2)
    late = keras.Sequential([Points()])
    late.compile(SGD(INNER_LR), half_squared_distance)
    if cases.BACKEND in ("tensorflow", "keras2"):  # others build it before
        with pytest.raises(ValueError, match=r"LocalSGDCallback: .* call model.build"):
            fit(late, callback)
    distributed = make_model()
    distributed.compile(hvd.DistributedOptimizer(SGD(INNER_LR)), half_squared_distance)
    with pytest.raises(ValueError, match="LocalSGDCallback: the model's optimizer is distributed"):
        fit(distributed, callback)
    if cases.BACKEND != "torch":
        with pytest.raises(ValueError, match="steps_per_execution must be 1, found 2"):
            fit(make_model(steps_per_execution=2), callback)
