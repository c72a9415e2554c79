"""DistributedOptimizer(sharded=True): the same bits as without, and a share of the state."""

from __future__ import annotations

import keras
import keras_cases as cases
import numpy as np
import pytest

import horovod.keras as hvd

IS_SHARED = cases.BACKEND in ("tensorflow", "torch")
shared = pytest.mark.skipif(not IS_SHARED, reason="refused here")

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, gradient_accumulation_steps=2, clipvalue=0.05),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.9, centered=True),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
}


def train(optimizer, epochs=2, model=None):
    """A model after some steps of ``fit``."""
    model = model or cases.make_model(optimizer)
    inputs, labels = cases.share(96, *cases.digits(192))
    model.fit(inputs, labels, batch_size=96 // hvd.size(), epochs=epochs, shuffle=False, verbose=0)
    return model


def assert_equal(found, expected, rtol=0.0):
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(a, b, rtol, rtol / 10, err_msg=str(number))


@shared
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_bits_are_those_of_the_whole_step(name):
    # TensorFlow rounds rsqrt otherwise in the last elements of a tensor, those beside its vectors.
    rtol = 1e-4 if (cases.BACKEND, name) == ("tensorflow", "rmsprop") else 0.0
    plain = train(hvd.DistributedOptimizer(OPTIMIZERS[name]()))
    model = train(hvd.DistributedOptimizer(OPTIMIZERS[name](), name="shares", sharded=True))
    assert_equal(cases.values_of(model.weights), cases.values_of(plain.weights), rtol)
    assert_equal(model.optimizer.gather_state(), cases.state_of(plain.optimizer), rtol)


@shared
@pytest.mark.parametrize(
    "options",
    [{"op": hvd.Sum}, {"gradient_predivide_factor": 2.0}, {"compression": hvd.Compression.fp16}],
    ids=str,
)
def test_options(options):
    values = []
    for sharded in (False, True):
        adam = keras.optimizers.Adam(0.01)
        optimizer = hvd.DistributedOptimizer(adam, str(sharded), sharded=sharded, **options)
        values.append(cases.values_of(train(optimizer, 1).weights))
    assert_equal(values[1], values[0])


@shared
def test_each_rank_keeps_its_part_of_the_state():
    model = train(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), sharded=True), 1)
    own = sum(value.size for value in cases.state_of(model.optimizer))
    count = sum(value.size for value in cases.values_of(model.trainable_variables))
    assert abs(own - 2 * count / hvd.size()) <= 2 + 2 * len(model.trainable_variables)


@shared
def test_own_loops_constraints_and_missing_gradients():
    values = []
    for sharded in (False, True):
        variables = cases.make_variables(np.ones(5), np.ones((2, 3)), np.ones(2))
        variables[0].constraint = keras.constraints.MaxNorm(0.5)
        sgd = keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1)
        optimizer = hvd.DistributedOptimizer(sgd, f"loop{sharded}", sharded=sharded)
        optimizer.exclude_from_weight_decay(var_list=[variables[1]])
        optimizer.build(variables)
        for step in range(2):
            given = [np.full(v.shape, step + hvd.rank(), "float32") for v in variables]
            gradients = [*map(keras.ops.convert_to_tensor, given[:2]), None]
            with pytest.warns(UserWarning, match="Gradients do not exist"):
                optimizer.apply_gradients(zip(gradients, variables, strict=True))
        values.append(cases.values_of(variables))
    assert_equal(values[1], values[0])


@shared
def test_a_saved_model(tmp_path):
    model = train(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), sharded=True))
    path = str(tmp_path / f"{hvd.rank()}.keras")
    with pytest.raises(ValueError, match=r"Call model\.optimizer\.gather_state\(\) on all ranks"):
        model.save(path)
    model.optimizer.gather_state()
    model.save(path)
    values = []
    for sharded in (False, True):
        loaded = keras.models.load_model(path)
        loaded.compile(
            hvd.DistributedOptimizer(loaded.optimizer, f"loaded{sharded}", sharded=sharded),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        values.append(cases.values_of(train(None, 1, loaded).weights))
    assert_equal(values[1], values[0])
    assert_equal(values[1], cases.values_of(train(None, 1, model).weights))


@shared
def test_an_elastic_state_is_refused():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), sharded=True)
    with pytest.raises(ValueError, match="elastic states cannot keep an optimizer with sharded"):
        hvd.elastic.KerasState(cases.make_model(optimizer))


@pytest.mark.skipif(IS_SHARED, reason="it works here")
def test_a_backend_that_cannot_is_refused():
    text = r"on jax the values of variables are" if cases.IS_KERAS3 else "needs Keras 3"
    with pytest.raises(ValueError, match=text):
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), sharded=True)


REFUSED = {
    "lamb": (lambda: keras.optimizers.Lamb(0.1), {}, "which Lamb may not do. Known: Adadelta, "),
    "norm": (lambda: keras.optimizers.SGD(0.1, clipnorm=1.0), {}, "cannot be used with clipnorm"),
    "average": (lambda: keras.optimizers.SGD(0.1, use_ema=True), {}, "used with use_ema"),
    "value": (lambda: keras.optimizers.SGD(0.1), {"sharded": "yes"}, "False, True or 'element"),
    "scale": (
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
        {},
        "LossScaleOptimizer may not do",
    ),
}


@shared
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shared_is_refused(name):
    if name == "lamb" and not hasattr(keras.optimizers, "Lamb"):
        pytest.skip("this Keras has no Lamb")
    make, options, text = REFUSED[name]
    with pytest.raises(ValueError, match=text):
        hvd.DistributedOptimizer(make(), **{"sharded": True, **options})


@shared
def test_local_variables_are_refused():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), sharded=True)
    with pytest.raises(ValueError, match="no local variables"):
        optimizer.register_local_var(None)
