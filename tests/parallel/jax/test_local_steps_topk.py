"""Local steps that send the largest elements of what ranks have changed."""

from __future__ import annotations

import copy
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd
from horovod.errors import MismatchError

optax = pytest.importorskip("optax", reason="optax is not installed")

SHAPES = {"a": (60, 50), "b": (200, 400), "c": (5,)}  # the last one travels exactly


def gradient(rank, number, name):
    seed = [rank, number, sorted(SHAPES).index(name)]
    return np.random.default_rng(seed).standard_normal(SHAPES[name]).astype(np.float32)


class Training:
    """SGD with a learning rate of 1 takes each gradient off the parameters."""

    def __init__(self, ratio=0.05, half=False, **schedule):
        compression = hvd.Compression.topk(ratio, half=half)
        self.optimizer = hvd.LocalSGD(optax.sgd(1.0), compression=compression, **schedule)
        self.params = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}
        self.inner = self.optimizer.init(self.params)
        self.outer = self.optimizer.begin(self.params)

    def run(self, steps):
        for number in steps:
            gradients = {name: gradient(hvd.rank(), number, name) for name in SHAPES}
            updates, self.inner = self.optimizer.update(gradients, self.inner, self.params)
            self.params = optax.apply_updates(self.params, updates)
            self.params, self.outer = self.optimizer.sync(self.params, self.outer)

    def finish(self):
        self.params, self.outer = self.optimizer.finish(self.params, self.outer)


def assert_same_everywhere(tree):
    mine = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(tree)]
    for other in hvd.allgather_object(mine):
        for ours, theirs in zip(mine, other, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("fragments", [1, 2])
def test_what_has_not_arrived_is_in_the_errors(half, fragments):
    if hvd.size() == 1:
        pytest.skip("one rank sends nothing")
    training = Training(sync_every=2, half=half, fragments=fragments)
    training.run(range(6))
    training.finish()
    assert_same_everywhere(training.params)
    owner, by_fragment = training.outer["errors"]
    assert owner == hvd.rank()
    errors = [error for errors in by_fragment.values() for error in errors.values()]
    assert len(errors) == 2
    for name, error in zip("abc", [*errors, np.zeros(5, np.float32)], strict=True):
        assert name == "c" or np.abs(error).max() > 0.1
        missing = hvd.allreduce(error, name=f"error.{name}")
        given = sum(gradient(r, n, name) for r in range(hvd.size()) for n in range(6))
        expected = given / hvd.size() - missing
        np.testing.assert_allclose(-training.params[name], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_saved_run_goes_on_with_the_same_bits(overlap):
    training = Training(sync_every=4, fragments=2, overlap=overlap)
    training.run(range(6))
    again = Training(sync_every=4, fragments=2, overlap=overlap)
    again.params, again.inner = training.params, training.inner
    again.outer = copy.deepcopy(training.optimizer.settle(training.outer))
    for each in (training, again):
        each.run(range(6, 14))
        each.finish()
    jax.tree_util.tree_map(np.testing.assert_array_equal, training.params, again.params)
    assert_same_everywhere(training.params)


def test_errors_of_another_rank_do_not_count():
    if hvd.size() == 1:
        pytest.skip("needs another rank")
    training, fresh = Training(sync_every=2), Training(sync_every=2)
    training.run(range(2))
    outer = training.outer
    given = hvd.broadcast_object(outer["errors"], root_rank=0, name="errors")
    training.outer = {**outer, "errors": given}
    fresh.params, fresh.inner = training.params, training.inner
    known = outer["errors"] if hvd.rank() == 0 else (hvd.rank(), {})
    fresh.outer = {**outer, "errors": known}
    for each in (training, fresh):
        each.run(range(2, 4))
    jax.tree_util.tree_map(np.testing.assert_array_equal, training.params, fresh.params)


@pytest.fixture
def _without_float64():
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", True)


@pytest.mark.usefixtures("_without_float64")
def test_float64_of_numpy_is_kept():
    """Where JAX itself has no float64."""
    compression = hvd.Compression.topk(1.0)
    optimizer = hvd.LocalSGD(optax.sgd(1.0), 1, compression=compression, name="float64")
    params = {"a": np.zeros((60, 50)), "c": np.zeros(5)}
    change = (hvd.rank() + 1) * (1 + 2.0**-40)
    changed = {name: array + change for name, array in params.items()}
    found, outer = optimizer.sync(changed, optimizer.begin(params))
    for array in found.values():
        assert array.dtype == np.float64
        np.testing.assert_array_equal(array, (hvd.size() + 1) / 2 * (1 + 2.0**-40))
    if hvd.size() > 1:
        assert [error.dtype for error in outer["errors"][1][0].values()] == [np.float64]


def test_other_options_on_a_rank_are_told():
    if hvd.size() == 1:
        pytest.skip("needs a rank that differs")
    text = r"rank 1 has compression='topk\(ratio=0.1, half=False\)', rank 0 .*ratio=0.2"
    with pytest.raises(ValueError, match=text):
        Training(ratio=0.1 if hvd.rank() else 0.2, sync_every=2)


def test_an_outer_state_of_other_fragments_is_refused():
    training, other = Training(sync_every=4), Training(sync_every=4, fragments=2)
    with pytest.raises(ValueError, match="finish: outer is of an optimizer with fragments=1, exp"):
        other.optimizer.finish(training.params, training.outer)


def test_an_agreement_inside_of_jit_is_refused():
    training = Training(sync_every=1)
    with pytest.raises(ValueError, match="LocalSGD: sync: call it outside of jit"):
        jax.jit(training.optimizer.sync)(training.params, training.outer)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_ranks_that_are_out_of_step_are_told(is_sparse):
    """A rank finishes, and the others take it for one that comes to their agreement."""
    if hvd.size() == 1:
        pytest.skip("needs ranks that differ")
    training = Training(sync_every=4)
    if not is_sparse:
        training.optimizer = hvd.LocalSGD(optax.sgd(1.0), sync_every=4)
    text = r"LocalSGD: all ranks must call step\(\) and finish\(\) equally.* sent \[0, [04], \d+\]"
    training.run(range(3))
    agree = training.finish if hvd.rank() == 0 else partial(training.run, range(3, 4))
    with pytest.raises(MismatchError, match=text):
        agree()


@pytest.mark.parametrize("is_sparse", [False, True])
def test_ranks_that_begin_with_different_parameters_are_told(is_sparse):
    if hvd.size() == 1:
        pytest.skip("needs ranks that differ")
    training = Training(sync_every=4)
    if not is_sparse:
        training.optimizer = hvd.LocalSGD(optax.sgd(1.0), sync_every=4)
    training.params = jax.tree_util.tree_map(lambda leaf: leaf + hvd.rank(), training.params)
    training.outer = training.optimizer.begin(training.params)
    with pytest.raises(MismatchError, match=r"begin with equal parameters \(hvd\.broadcast_param"):
        training.run(range(4))
