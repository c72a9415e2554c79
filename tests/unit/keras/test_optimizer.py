"""Wrapped optimizers in a world of one: their class, and refused arguments."""

import keras
import pytest

import horovod.keras as hvd


@pytest.fixture(autouse=True)
def alone(world):
    """A world for all tests."""


# Of Keras, about NumPy 2.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_class_and_config():
    original = keras.optimizers.Adam(0.25, beta_1=0.5, name="mine")
    wrapped = hvd.DistributedOptimizer(original)
    kind = type(wrapped)
    assert (kind.__module__, kind.__name__) == ("horovod._keras", type(original).__name__)
    assert isinstance(wrapped, type(original))
    assert wrapped.get_config() == original.get_config()
    assert list(wrapped.variables()) == list(wrapped.variables)
    assert keras.optimizers.serialize(wrapped)["module"] == "keras.optimizers"


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_refuses_what_is_no_plain_optimizer():
    wrapped = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(wrapped)
    with pytest.raises(ValueError, match="must be a Keras optimizer"):
        hvd.DistributedOptimizer("sgd")


class Variable:
    name = "v"

    def assign(self, value):
        raise AssertionError


shared = Variable()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": hvd.Adasum}, "Adasum"),
        ({"op": 3}, "Average or Sum"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "needs op=Average"),
        ({"gradient_predivide_factor": 0.0}, "must be positive"),
        ({"groups": 0}, "number > 0"),
        ({"groups": "two"}, "number > 0"),
        ({"groups": [shared]}, "lists of variables"),
        ({"groups": [[1]]}, "lists of variables"),
        ({"groups": [[shared], [shared]]}, "one group only"),
        ({"backward_passes_per_step": 0}, "at least 1"),
        ({"compression": "fp16"}, r"Compressor such as hvd.Compression.fp16, found 'fp16'"),
        ({"process_set": [0]}, "ProcessSet"),
        ({"local_layers": "dense"}, "local_layers"),
    ],
    ids=str,
)
def test_refuses_options(options, message):
    with pytest.raises(ValueError, match=message):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), **options)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_num_groups_is_deprecated():
    with pytest.warns(DeprecationWarning, match="num_groups"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), num_groups=2)
