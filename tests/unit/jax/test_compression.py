"""Top-k and PowerSGD in a world of one: what is sent and kept, states, refusals."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd
from horovod.jax import topk
from horovod.jax.error_feedback import FeedbackState
from horovod.jax.powersgd import PowerSGDState
from horovod.jax.topk import TopKReduction

optax = pytest.importorskip("optax", reason="optax is not installed")
pytestmark = pytest.mark.usefixtures("world")

TOPK, POWERSGD = hvd.Compression.topk(), hvd.Compression.powersgd(rank=1)
BOTH = pytest.mark.parametrize("compression", [TOPK, POWERSGD], ids=["topk", "powersgd"])


def params():
    return {"kernel": jnp.ones((50, 40)), "bias": jnp.ones(2000), "steps": jnp.int32(0)}


def reduction_of(ratio, half=False):
    compression = hvd.Compression.topk(ratio, half=half)
    return TopKReduction("name", compression, hvd.Average, 1.0, None, hvd.global_process_set)


@pytest.fixture
def gathered(monkeypatch):
    """What would have been gathered last, as a world of one rank gets it."""
    last = []

    def gather(parts, name, process_set):
        count = len(parts) // 3
        assert not any(form.size for form in parts[2 * count :])
        sizes = [math.prod(form.shape[2:]) for form in parts[2 * count :]]
        packs = zip(parts[count : 2 * count], sizes, strict=True)
        indices = [topk.unpacked(pack, elements=size, ranks=1) for pack, size in packs]
        last[:] = [*parts[:count], *indices]
        return parts

    monkeypatch.setattr(topk, "grouped_allgather", gather)
    return last


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("ratio", [0.0001, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("half", [False, True])
def test_what_is_sent_and_kept_is_the_gradient_exactly(gathered, dtype, ratio, seed, half):
    """Also with many equal elements, and with errors from before."""
    reduction, generator = reduction_of(ratio, half), np.random.default_rng(seed)
    errors = {"w": reduction.first_error("w", jnp.zeros((60, 50), dtype))}
    for step in range(3):
        numbers = np.round(4 * generator.standard_normal((60, 50))) / (4 if step else 1)
        given = reduction.corrected(jnp.asarray(numbers, dtype), errors["w"])
        assert given.dtype == jnp.float32
        result = reduction.exchange("name", {"w": given}, errors)["w"]
        values, indices = map(np.asarray, gathered)
        assert len(values) == len(set(indices.tolist())) == max(1, round(3000 * ratio))
        sent = np.zeros(3000, np.float32)
        assert values.dtype == (jnp.bfloat16 if half else np.float32)
        sent[indices] = values.astype(np.float32)
        kept = np.asarray(errors["w"]).reshape(-1)
        np.testing.assert_array_equal(sent + kept, np.asarray(given).reshape(-1))
        both = (sent != 0) & (kept != 0)
        assert np.all(np.abs(kept[both]) <= np.abs(sent[both]) / 256)
        assert half or not both.any()
        assert np.abs(kept[~both]).max(initial=0) <= np.abs(values).astype(np.float32).min()
        np.testing.assert_array_equal(np.asarray(result).reshape(-1), sent)


@pytest.mark.parametrize("elements", [1, 3000, 65536, 65537, 200_000])
@pytest.mark.parametrize("ratio", [0.001, 0.3, 1.0])
def test_indices_travel_in_16_bits(elements, ratio):
    count = max(1, round(ratio * elements))
    order = np.random.default_rng(0).permutation(elements)
    indices = np.sort(order[:count]).astype(np.int32)
    parts = topk.packed(indices, elements=elements)
    assert parts.dtype == jnp.int16
    assert len(parts) <= count + 2 * (elements // 65536 + 1)
    both = jnp.concatenate([parts, parts])
    found = topk.unpacked(both, elements=elements, ranks=2)
    np.testing.assert_array_equal(found, np.tile(indices, 2))


@pytest.mark.parametrize("counts", [(3, 0), (1, 0), (0, 2), (-1, 3), (2, -1)])
def test_indices_with_altered_counts_cannot_be(counts):
    """Two indices of 70,000 elements: one below 65,536, and one above."""
    parts = topk.packed(jnp.asarray([5, 65540], jnp.int32), elements=70_000)
    halves = np.asarray(counts, np.int32).view(np.int16)
    altered = jnp.concatenate([jnp.asarray(halves), parts[4:]])
    found = topk.unpacked(jnp.concatenate([altered, parts]), elements=70_000, ranks=2)
    if counts == (0, 2):
        assert found.tolist() == [65541, 65540, 5, 65540]
    else:
        assert found.tolist() == [-1, -1, 5, 65540]


def test_a_sum_of_counts_that_wraps_is_noticed():
    halves = np.asarray([2**31 - 1, 2**31 - 1, 7, 0], np.int32).view(np.int16)
    parts = jnp.concatenate([jnp.asarray(halves), jnp.arange(5, dtype=jnp.int16)])
    found = topk.unpacked(parts, elements=4 * 65536, ranks=1)
    assert found.tolist() == [-1] * 5


@pytest.mark.usefixtures("gathered")
def test_an_altered_index_makes_the_result_not_finite():
    total = jnp.zeros(10)
    for index in (-1, 10, 1 << 30):
        indices = jnp.asarray([3, index], jnp.int32)
        result = topk._add_up(total, jnp.ones(2), indices, ranks=1)
        assert not jnp.all(jnp.isfinite(result))


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_what_is_not_finite_is_sent(bad):
    array = jnp.arange(1000.0).at[jnp.asarray([7, 500])].set(bad)
    assert set(np.asarray(topk._largest(array, count=3)).tolist()) == {7, 500, 999}


@BOTH
def test_states(compression):
    optimizer = hvd.DistributedOptimizer(optax.adam(0.1), compression=compression)
    state = optimizer.init(params())
    assert isinstance(state, FeedbackState if compression is TOPK else PowerSGDState)
    assert {path: error.shape for path, error in state.errors.items()} == {"['kernel']": (50, 40)}
    assert state.rank == 0
    if compression is POWERSGD:
        q = state.q["['kernel']"]
        np.testing.assert_allclose(q.T @ q, np.eye(1), atol=1e-6)
    jax.tree_util.tree_map(np.asarray, state)  # arrays only, so that it can be saved


@BOTH
def test_alone_nothing_is_compressed_and_errors_arrive(compression):
    """As in an elastic job whose other workers have gone."""
    optimizer = hvd.DistributedOptimizer(optax.identity(), compression=compression)
    gradients = {"kernel": jnp.ones((50, 40)), "bias": jnp.ones(2000)}
    state = optimizer.init(gradients)
    state = state._replace(errors={"['kernel']": jnp.full((50, 40), 2.0)})
    for expected in (3.0, 1.0):
        updates, state = jax.jit(optimizer.update)(gradients, state)
        np.testing.assert_array_equal(updates["kernel"], np.full((50, 40), expected))
        np.testing.assert_array_equal(updates["bias"], np.ones(2000))


@BOTH
def test_the_state_of_another_model_is_refused(compression):
    optimizer = hvd.DistributedOptimizer(optax.identity(), compression=compression)
    state = optimizer.init({"kernel": jnp.ones((50, 40))})
    text = r"errors\['kernel'\] of shape \[50, 40\], expected \[50, 1, 40\]"
    with pytest.raises(ValueError, match=text):
        optimizer.update({"kernel": jnp.ones((50, 1, 40))}, state)


@BOTH
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.int32])
def test_a_state_of_another_dtype_is_refused(compression, dtype):
    """Gradients would be rounded to it."""
    optimizer = hvd.DistributedOptimizer(optax.identity(), compression=compression)
    state = optimizer.init(params())
    errors = {path: error.astype(dtype) for path, error in state.errors.items()}
    text = rf"errors\['kernel'\] of dtype {jnp.dtype(dtype).name}, expected float32"
    with pytest.raises(ValueError, match=text):
        optimizer.update(params(), state._replace(errors=errors))


@BOTH
def test_integers_for_a_floating_parameter_are_refused(compression):
    optimizer = hvd.DistributedOptimizer(optax.identity(), compression=compression)
    gradients = jax.tree_util.tree_map(lambda p: jnp.ones(p.shape, jnp.int32), params())
    with pytest.raises(ValueError, match=r"gradient \['kernel'\] has dtype int32, expected a flo"):
        optimizer.update(gradients, optimizer.init(params()))


def test_errors_that_powersgd_does_not_have_are_refused():
    optimizer = hvd.DistributedOptimizer(
        optax.identity(), compression=hvd.Compression.powersgd(rank=2)
    )
    state = optimizer.init(params())
    errors = {**state.errors, "['bias']": jnp.ones(7)}
    text = r"errors\['bias'\] of shape \[7\] and q\['bias'\] of shape none, expected none"
    with pytest.raises(ValueError, match=text):
        optimizer.update(params(), state._replace(errors=errors))


def test_a_state_of_another_rank_of_powersgd_is_refused():
    def make(rank):
        compression = hvd.Compression.powersgd(rank=rank)
        return hvd.DistributedOptimizer(optax.identity(), compression=compression)

    state = make(2).init(params())
    with pytest.raises(ValueError, match=r"q\['kernel'\] of shape \[40, 2\], expected \[40, 3\]"):
        make(3).update(params(), state)


@BOTH
def test_refusals(compression):
    kind = type(compression).__name__

    def make(**options):
        return hvd.DistributedOptimizer(optax.sgd(0.1), **{"compression": compression, **options})

    for op in (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product):
        with pytest.raises(ValueError, match=f"{compression.title} reduces with op=Average or op="):
            make(op=op)
    with pytest.raises(ValueError, match=f"compression={kind} is a class; call it"):
        make(compression=type(compression))
    with pytest.raises(ValueError, match=f"compression={kind}, which needs whole gradients"):
        make(sharded=True)
    with pytest.raises(ValueError, match=f"LocalSGD: compression={kind} is a class; call it"):
        hvd.LocalSGD(optax.sgd(0.1), sync_every=2, compression=type(compression))
    if compression is POWERSGD:
        with pytest.raises(ValueError, match=r"compression=powersgd\(.*\) cannot reduce single"):
            hvd.LocalSGD(optax.sgd(0.1), sync_every=2, compression=compression)
    with pytest.raises(ValueError, match=r"DistributedOptimizer\(compression=\.\.\.\)"):
        hvd.allreduce(jnp.ones(5), compression=compression)
    plain = optax.sgd(0.1).init(params())
    with pytest.raises(ValueError, match=r"update needs a \w+State, found tuple; make it with"):
        make().update(params(), plain)
