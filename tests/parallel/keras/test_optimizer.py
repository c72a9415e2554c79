"""The gradients that a distributed optimizer applies: SGD with rate 1 subtracts them."""

import copy
import pickle
from contextlib import nullcontext

import keras
import keras_cases as cases
import numpy as np
import pytest

import horovod.keras as hvd
from horovod.errors import MismatchError

RATES = [keras.optimizers.SGD]
if not cases.IS_KERAS3:
    RATES.append(keras.optimizers.legacy.SGD)


@pytest.fixture(params=RATES, ids=lambda kind: kind.__module__.split(".")[-2])
def sgd(request):
    def make(**options):
        return hvd.PartialDistributedOptimizer(request.param(1.0), **options)

    return make


def mean_of(function) -> np.ndarray:
    return np.mean([function(rank) for rank in range(hvd.size())], axis=0)


def gradients(rank: int) -> list[np.ndarray]:
    return [np.full(3, rank + 1.0), np.arange(4.0).reshape(2, 2) * (rank + 1), np.float32(rank)]


def start() -> list[np.ndarray]:
    return [np.zeros(3), np.zeros((2, 2)), np.float32(0)]


def run(optimizer, variables=None):
    variables = variables or cases.make_variables(*start())
    cases.step(optimizer, variables, gradients(hvd.rank()))
    return cases.values_of(variables)


def check(found, factor=1.0, rtol=1e-6):
    for position, value in enumerate(found):
        expected = -factor * mean_of(lambda rank, p=position: gradients(rank)[p])
        np.testing.assert_allclose(value, expected, rtol=rtol)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_predivide_factor": 2.0},
        {"compression": hvd.Compression.fp16},
        {"groups": 2},
        {"name": "mine", "groups": 7},
    ],
    ids=str,
)
def test_average(sgd, options):
    check(run(sgd(**options)), rtol=1e-3 if "compression" in options else 1e-6)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="others have no topk")
@pytest.mark.parametrize("groups", [None, 2])
def test_ranks_with_different_compressions_are_told(sgd, groups):
    compression = hvd.Compression.topk() if hvd.rank() else hvd.Compression.none
    with pytest.raises(MismatchError, match="Mismatched"):
        run(sgd(compression=compression, groups=groups))
    check(run(sgd(compression=hvd.Compression.topk(), groups=groups)))


def test_sum(sgd):
    check(run(sgd(op=hvd.Sum)), factor=hvd.size())


def test_groups_of_variables(sgd):
    variables = cases.make_variables(*start())
    check(run(sgd(groups=[[variables[2], variables[0]]]), variables))


def test_several_steps_and_two_optimizers(sgd):
    first, second = sgd(), sgd(name="second")
    one, other = cases.make_variables(*start()), cases.make_variables(*start())
    for _ in range(3):
        cases.step(first, one, gradients(hvd.rank()))
        cases.step(second, other, gradients(hvd.rank()))
    check(cases.values_of(one), factor=3)
    check(cases.values_of(other), factor=3)
    assert int(cases.values_of([first.iterations])[0]) == 3


def test_none_stays_none(sgd):
    variables = cases.make_variables(*start())
    given = gradients(hvd.rank())
    given[1] = None
    with (
        pytest.warns(UserWarning, match="Gradients do not exist")
        if cases.IS_KERAS3
        else nullcontext()
    ):
        cases.step(sgd(), variables, given)
    found = cases.values_of(variables)
    assert (found[1] == 0).all()
    np.testing.assert_allclose(found[0], -mean_of(lambda rank: gradients(rank)[0]))


@pytest.mark.parametrize("scales", [True, False])
def test_local_variable(sgd, scales):
    optimizer = sgd(scale_local_gradients=scales)
    variables = cases.make_variables(*start())
    optimizer.register_local_var(variables[0])
    found = run(optimizer, variables)
    factor = hvd.size() if scales else 1
    np.testing.assert_allclose(found[0], -gradients(hvd.rank())[0] / factor, rtol=1e-6)
    np.testing.assert_allclose(found[1], -mean_of(lambda rank: gradients(rank)[1]))
    assert optimizer.scale_local_gradients is scales
    assert optimizer.process_set is hvd.global_process_set


def test_process_sets(sgd, process_sets):
    for number, process_set in enumerate(process_sets):
        found = run(sgd(process_set=process_set, name=f"set{number}"))
        ranks = process_set.ranks if process_set.included() else [hvd.rank()]
        expected = -np.mean([gradients(rank)[0] for rank in ranks], axis=0)
        np.testing.assert_allclose(found[0], expected, rtol=1e-6)


@pytest.mark.parametrize("averages", [False, True])
def test_backward_passes(sgd, averages):
    optimizer = sgd(backward_passes_per_step=3, average_aggregated_gradients=averages)
    variables = cases.make_variables(*start())
    for number in range(1, 8):
        cases.step(optimizer, variables, gradients(hvd.rank()))
        steps = number // 3
        check(cases.values_of(variables), factor=steps * (1 if averages else 3))
        assert int(cases.values_of([optimizer.iterations])[0]) == number


@pytest.mark.skipif(not cases.IS_KERAS3, reason="Keras 2 does not add up gradients itself")
@pytest.mark.parametrize("keras_steps", [2, 3, 4])
def test_backward_passes_of_keras_steps_that_add_up(keras_steps):
    """Keras finds its last step by counting; other passes must not count."""
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0, gradient_accumulation_steps=keras_steps),
        backward_passes_per_step=2,
    )
    variables = cases.make_variables(*start())
    for number in range(1, 4 * keras_steps + 1):
        cases.step(optimizer, variables, gradients(hvd.rank()))
        check(cases.values_of(variables), factor=2 * (number // (2 * keras_steps)))


@pytest.mark.skipif(not cases.IS_KERAS3, reason="minimize() of Keras 2 makes the gradients")
@pytest.mark.parametrize("groups", [None, 2])
def test_a_variable_may_have_several_gradients(sgd, groups):
    (variable,) = cases.make_variables(np.zeros(2))
    own = [np.full(2, hvd.rank() + 1.0), np.full(2, hvd.rank() + 3.0)]
    cases.step(sgd(groups=groups), [variable, variable], own)
    expected = -mean_of(lambda rank: 2 * rank + 4.0)
    np.testing.assert_allclose(cases.values_of([variable])[0], expected, rtol=1e-6)


@pytest.mark.skipif(cases.BACKEND not in ("tensorflow", "torch"), reason="apply() of Keras 3")
@pytest.mark.parametrize("passes", [1, 2])
def test_a_loss_scaling_optimizer_around_it_decides_for_all_ranks(sgd, passes):
    """Outside of ``fit``; one rank's gradient is infinite once."""
    optimizer = keras.optimizers.LossScaleOptimizer(
        sgd(backward_passes_per_step=passes), initial_scale=4.0
    )
    variables = cases.make_variables(np.zeros(2))
    is_last = hvd.rank() == hvd.size() - 1
    for gradient in (4.0, np.inf if is_last else 4.0, 2.0):
        cases.step(optimizer, variables, [np.full(2, gradient * (hvd.rank() + 1))])
    expected = -2 * mean_of(lambda rank: rank + 1.0)
    np.testing.assert_allclose(cases.values_of(variables)[0], expected, rtol=1e-6)
    assert float(cases.values_of([optimizer.dynamic_scale])[0]) == 2.0


@pytest.mark.skipif(cases.BACKEND not in ("tensorflow", "torch"), reason="apply() of Keras 3")
def test_infinite_gradients_of_local_variables_are_dropped_on_all_ranks():
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=4.0)
    optimizer = hvd.DistributedOptimizer(scaling)
    shared, mine = variables = cases.make_variables(np.zeros(2), np.zeros(1))
    optimizer.register_local_var(mine)
    is_last = hvd.rank() == hvd.size() - 1
    for gradient in (4.0, np.inf if is_last else 4.0, 2.0):
        cases.step(optimizer, variables, [np.full(2, 4.0 * (hvd.rank() + 1)), [gradient]])
    found = cases.values_of([shared, mine, optimizer.dynamic_scale])
    np.testing.assert_allclose(found[0], -3 * mean_of(lambda rank: rank + 1.0), rtol=1e-6)
    np.testing.assert_allclose(found[1], -2 / hvd.size(), rtol=1e-6)
    assert float(found[2]) == 2.0


def test_global_clipping_of_local_gradients_is_refused():
    """Ranks would clip what they share by different norms."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, global_clipnorm=0.5))
    variables = cases.make_variables(*start())
    optimizer.register_local_var(variables[1])
    with pytest.raises(ValueError, match="global_clipnorm cannot be used with local layers"):
        cases.step(optimizer, variables, gradients(hvd.rank()))


def test_local_layers_may_be_built_late():
    layer = keras.layers.Dense(2, use_bias=False, name="mine")
    shared = keras.layers.Dense(2, use_bias=False, name="shared")
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=layer)
    for part in (layer, shared):
        part.build((None, 2))
    variables = [*layer.trainable_weights, *shared.trainable_weights]
    before = cases.values_of(variables)
    cases.step(optimizer, variables, [np.full((2, 2), hvd.rank() + 1.0)] * 2)
    mine, all_ranks = (b - a for a, b in zip(cases.values_of(variables), before, strict=True))
    np.testing.assert_allclose(mine, (hvd.rank() + 1.0) / hvd.size(), rtol=1e-5)
    np.testing.assert_allclose(all_ranks, mean_of(lambda rank: rank + 1.0), rtol=1e-5)
    with pytest.raises(ValueError, match="local_layers"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=[1])


def test_global_clipping_sees_reduced_gradients():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, global_clipnorm=0.5))
    found = run(optimizer)
    norm = np.sqrt(sum((value**2).sum() for value in found))
    np.testing.assert_allclose(norm, 0.5, rtol=1e-5)
    assert cases.are_equal_on_all_ranks(found)


@pytest.mark.skipif(not cases.IS_KERAS3, reason="Keras 2 does not reduce there")
def test_apply_gradients_reduces():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    variables = cases.make_variables(*start())
    tensors = [keras.ops.convert_to_tensor(np.float32(g)) for g in gradients(hvd.rank())]
    optimizer.apply_gradients(zip(tensors, variables, strict=True))
    check(cases.values_of(variables))


@pytest.mark.skipif(cases.IS_KERAS3, reason="Keras 3 reduces there")
def test_apply_gradients_takes_them_as_they_are(sgd):
    import tensorflow as tf

    variables = cases.make_variables(*start())
    tensors = [tf.constant(np.float32(g)) for g in gradients(hvd.rank())]
    sgd().apply_gradients(zip(tensors, variables, strict=True))
    np.testing.assert_allclose(cases.values_of(variables)[0], -gradients(hvd.rank())[0])


ON_TENSORFLOW = cases.BACKEND == "tensorflow"


@pytest.mark.skipif(not ON_TENSORFLOW, reason="of Keras 3 on TensorFlow, as in Keras 2")
@pytest.mark.parametrize("is_function", [False, True])
@pytest.mark.parametrize("call", ["tape", "function"])
def test_compute_gradients_reduces_once(is_function, call):
    import tensorflow as tf

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    variables = cases.make_variables(*start())
    own = [np.float32(gradient) for gradient in gradients(hvd.rank())]
    optimizer.build(variables)

    def loss():
        return sum(tf.reduce_sum(v * g) for v, g in zip(variables, own, strict=True))

    def step():
        if call == "function":
            pairs = optimizer._compute_gradients(loss, var_list=lambda: variables)
        else:
            with tf.GradientTape() as tape:
                value = loss()
            pairs = optimizer._compute_gradients(loss=value, var_list=variables, tape=tape)
        optimizer.apply_gradients(pairs)
        return [gradient for gradient, _ in pairs]

    run_step = tf.function(step) if is_function else step
    for steps in (1, 2):
        for position, found in enumerate(run_step()):
            total = hvd.size() * mean_of(lambda rank, p=position: gradients(rank)[p])
            np.testing.assert_allclose(found, total, rtol=1e-6)
        check(cases.values_of(variables), factor=steps * hvd.size())


@pytest.mark.skipif(not ON_TENSORFLOW, reason="of Keras 3 on TensorFlow, as in Keras 2")
def test_compute_gradients_of_a_class_that_has_its_own():
    import tensorflow as tf

    class Given(keras.optimizers.SGD):
        """An optimizer whose losses are the gradients."""

        def _compute_gradients(self, loss, var_list, grad_loss=None, tape=None):
            return list(zip(loss, var_list, strict=True))

    optimizer = hvd.PartialDistributedOptimizer(Given(1.0), backward_passes_per_step=2)
    variables = cases.make_variables(*start())
    own = [tf.constant(np.float32(gradient)) for gradient in gradients(hvd.rank())]
    for number in range(1, 5):
        optimizer.apply_gradients(optimizer._compute_gradients(own, var_list=variables))
        check(cases.values_of(variables), factor=2 * (number // 2))


@pytest.mark.skipif(cases.BACKEND in ("keras2", "tensorflow"), reason="TensorFlow has tapes")
def test_compute_gradients_needs_tensorflow(sgd):
    with pytest.raises(NotImplementedError, match="needs Keras on TensorFlow"):
        sgd().compute_gradients(lambda: 0, cases.make_variables(*start()))


def test_ranks_may_have_made_other_optimizers_before(sgd):
    """Keras numbers its objects; the operations' names must not depend on it."""
    for _ in range(hvd.rank()):
        RATES[0](1.0)
    check(run(sgd()))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_copies_are_refused(sgd, copied):
    """Keras's own copy would be a plain optimizer."""
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copied(sgd())
