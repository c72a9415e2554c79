"""Top-k and PowerSGD with error feedback: what is sent, what is kept, what becomes of the state."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd
from horovod.jax.error_feedback import FeedbackState
from horovod.jax.powersgd import PowerSGDState

optax = pytest.importorskip("optax", reason="optax is not installed")

SHAPES = {"kernel": (60, 50), "embedding": (80, 30), "small": (20, 20), "bias": (2000,)}
# Both compress the kernel only.
TOPK = hvd.Compression.topk(0.05)
POWERSGD = hvd.Compression.powersgd(rank=2, min_compression_rate=12)
BOTH = pytest.mark.parametrize("compression", [TOPK, POWERSGD], ids=["topk", "powersgd"])


def gradients_of(rank, seed=0, dtype=np.float32):
    generator = np.random.default_rng(100 * seed + rank)
    return {
        name: jnp.asarray(generator.standard_normal(shape).astype(np.float32), dtype)
        for name, shape in SHAPES.items()
    }


def exact(seed=0, op=hvd.Average):
    per_rank = [gradients_of(rank, seed) for rank in range(hvd.size())]
    total = {n: sum(np.asarray(g[n], np.float64) for g in per_rank) for n in SHAPES}
    return {n: x / (hvd.size() if op == hvd.Average else 1) for n, x in total.items()}


def make(compression, name, **options):
    """An optimizer whose updates are the reduced gradients."""
    return hvd.DistributedOptimizer(optax.identity(), name=name, compression=compression, **options)


@cache
def compiled(compression):
    """An optimizer and its compiled update, which several tests use."""
    optimizer = make(compression, f"{compression.title}.compiled")
    return optimizer, jax.jit(optimizer.update)


def assert_same_everywhere(tree):
    mine = [np.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(tree)]
    assert all(mine == other for other in hvd.allgather_object(mine))


def errors_of_all(state):
    """The sum over ranks of each error, by name."""
    return {
        path: np.asarray(hvd.allreduce(error.astype(jnp.float64), op=hvd.Sum, name=f"of{path}"))
        for path, error in state.errors.items()
    }


OPTIONS = {
    "sum": {"op": hvd.Sum},
    "predivide and groups": {"gradient_predivide_factor": 4.0, "groups": 2},
    "named groups": {"groups": [["['kernel']", "['bias']"]]},
}


@BOTH
def test_outside_of_jit(compression):
    check_that_nothing_is_lost(compression, {}, lambda function: function)


@BOTH
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_nothing_is_lost(compression, options):
    check_that_nothing_is_lost(compression, options, jax.jit)


def check_that_nothing_is_lost(compression, options, mode):
    """What has arrived and what is kept is together what was given, on all ranks the same."""
    optimizer = make(compression, f"{compression.title}.lost", **options)
    step, state = mode(optimizer.update), optimizer.init(gradients_of(0))
    factor = 1 if options.get("op") == hvd.Sum else hvd.size()
    arrived = {n: np.zeros(shape) for n, shape in SHAPES.items()}
    given = {n: np.zeros(shape) for n, shape in SHAPES.items()}
    for seed in range(4):
        updates, state = step(gradients_of(hvd.rank(), seed), state)
        assert_same_everywhere(updates)
        for n, expected in exact(seed, hvd.Sum).items():
            arrived[n] += factor * np.asarray(updates[n], np.float64)
            given[n] += expected
    if hvd.size() > 1:
        kept = errors_of_all(state)
        assert set(kept) == {"['kernel']"}
        assert all(np.abs(error).max() > 0.1 for error in kept.values())
        for path, error in kept.items():
            arrived[path[2:-2]] += error
    for n in SHAPES:
        np.testing.assert_allclose(arrived[n], given[n], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64])
def test_topk_sends_the_largest(mode, dtype, several_ranks):
    """Exactly: what is sent and kept of each element is the element."""
    count, k = 4000, 200
    optimizer = make(hvd.Compression.topk(k / count), f"largest.{jnp.dtype(dtype)}")
    own = [np.random.default_rng(rank).standard_normal(count) for rank in range(hvd.size())]
    own = [np.asarray(jnp.asarray(x, dtype), np.float64) for x in own]
    sent = [np.where(np.abs(x) >= np.sort(np.abs(x))[-k], x, 0) for x in own]
    state = optimizer.init({"w": jnp.zeros(count, dtype)})
    assert isinstance(state, FeedbackState)
    assert state.errors["['w']"].dtype == jnp.promote_types(dtype, jnp.float32)
    updates, state = mode(optimizer.update)({"w": jnp.asarray(own[hvd.rank()], dtype)}, state)
    error = np.asarray(state.errors["['w']"], np.float64)
    if dtype in (jnp.float32, jnp.float64):  # of shorter ones several are equal
        np.testing.assert_array_equal(error, own[hvd.rank()] - sent[hvd.rank()])
        expected = sum(sent) / hvd.size()
        np.testing.assert_allclose(np.asarray(updates["w"], np.float64), expected, rtol=1e-6)
    is_sent = error == 0
    assert abs(int(is_sent.sum()) - k) <= (own[hvd.rank()] == 0).sum()
    np.testing.assert_array_equal(error[~is_sent], own[hvd.rank()][~is_sent])
    assert updates["w"].dtype == dtype


def test_powersgd_is_exact_when_the_rank_suffices(several_ranks):
    optimizer = make(hvd.Compression.powersgd(rank=4), "suffices")
    vectors = [np.random.default_rng(r).standard_normal((2, 40)) for r in range(hvd.size())]
    own = [np.outer(*pair) for pair in vectors]
    state = optimizer.init({"w": jnp.zeros((40, 40))})
    assert isinstance(state, PowerSGDState)
    for count in (1, 2, 3):
        updates, state = jax.jit(optimizer.update)({"w": jnp.asarray(own[hvd.rank()])}, state)
        np.testing.assert_allclose(updates["w"], sum(own) / hvd.size(), rtol=1e-9, atol=1e-9)
        assert int(state.steps) == count


def test_powersgd_starts_after(several_ranks):
    optimizer = make(hvd.Compression.powersgd(rank=1, start_after=2), "after")
    step, state = jax.jit(optimizer.update), optimizer.init({"kernel": jnp.zeros((60, 50))})
    for seed in range(3):
        kernel = gradients_of(hvd.rank(), seed)["kernel"]
        updates, state = step({"kernel": kernel}, state)
        difference = np.abs(np.asarray(updates["kernel"]) - exact(seed)["kernel"]).max()
        assert (difference > 0.1) == (seed == 2)


@BOTH
def test_several_passes(compression):
    optimizer = make(compression, f"{compression.title}.passes", backward_passes_per_step=2)
    single, step_of_sum = compiled(compression)
    state, expected = optimizer.init(gradients_of(0)), single.init(gradients_of(0))
    step = jax.jit(optimizer.update)
    for seed in (0, 2):
        pair = [gradients_of(hvd.rank(), seed), gradients_of(hvd.rank(), seed + 1)]
        updates, state = step(pair[0], state)
        assert not any(jnp.any(update) for update in updates.values())
        updates, state = step(pair[1], state)
        total = jax.tree_util.tree_map(jnp.add, *pair)
        wanted, expected = step_of_sum(total, expected)
        for n in SHAPES:
            np.testing.assert_allclose(updates[n], wanted[n], rtol=1e-4, atol=1e-4)


@BOTH
def test_errors_of_another_rank_do_not_count(compression, several_ranks):
    optimizer, step = compiled(compression)
    state = optimizer.init(gradients_of(0))
    ones = state._replace(errors={p: jnp.ones_like(e) for p, e in state.errors.items()})
    zeros = jax.tree_util.tree_map(jnp.zeros_like, gradients_of(0))
    updates, after = step(zeros, ones._replace(rank=jnp.int32(-1)))
    assert not any(jnp.any(update) for update in updates.values())
    assert not any(jnp.any(error) for error in after.errors.values())
    assert after.rank == hvd.rank()
    updates, _ = step(zeros, ones)
    assert {n for n, update in updates.items() if jnp.any(update)} == {"kernel"}


@pytest.mark.parametrize("mode", [lambda function: function, jax.jit], ids=["outside", "in jit"])
@pytest.mark.parametrize(
    ("shapes", "ratios"),
    [
        # As many elements as expected come: the first has as many, the second sends as many.
        (((60, 50), (50, 60)), (0.05, 0.05)),
        (((60, 50), (60, 51)), (0.01, 0.01)),
        (((60, 50), (60, 50)), (0.05, 0.1)),
    ],
    ids=["same size", "same number sent", "ratio"],
)
def test_ranks_that_differ_are_told(shapes, ratios, mode, several_ranks, request):
    is_first = hvd.rank() == 0
    optimizer = make(hvd.Compression.topk(ratios[is_first]), request.node.name)
    params = {"kernel": jnp.ones(shapes[is_first])}
    with pytest.raises(Exception, match=r"\['kernel'\].* Mismatched .* shapes: rank"):
        jax.block_until_ready(mode(optimizer.update)(params, optimizer.init(params)))


@BOTH
def test_a_broadcast_state(compression):
    """As after loading a file on rank 0, or from an elastic state: its errors are rank 0's."""
    optimizer, step = compiled(compression)
    state = optimizer.init(gradients_of(0))
    _, state = step(gradients_of(hvd.rank()), state)
    state = hvd.broadcast_parameters(state)
    for seed in range(2):
        updates, state = step(gradients_of(hvd.rank(), seed), state)
        assert_same_everywhere(updates)
        assert int(state.rank) == hvd.rank()


@BOTH
@pytest.mark.parametrize(("where", "bad"), [("kernel", jnp.nan), ("bias", jnp.inf)])
def test_infinite_gradients_leave_the_memory_alone(compression, where, bad):
    optimizer, step = compiled(compression)
    _, state = step(gradients_of(hvd.rank()), optimizer.init(gradients_of(0)))
    gradients = gradients_of(hvd.rank(), 1)
    if hvd.rank() == hvd.size() - 1:
        gradients[where] = gradients[where].reshape(-1).at[3].set(bad).reshape(SHAPES[where])
    updates, after = step(gradients, state)
    assert not jnp.all(jnp.isfinite(updates[where]))
    for path, error in state.errors.items():
        if hvd.size() > 1:
            np.testing.assert_array_equal(after.errors[path], error)


def test_process_sets(several_ranks, process_sets):
    for process_set in process_sets:
        if not process_set.included():
            continue
        number = process_set.process_set_id
        optimizer = make(TOPK, f"set{number}", process_set=process_set)
        state = optimizer.init(gradients_of(0))
        total, steps = np.zeros(SHAPES["kernel"]), 30
        step = jax.jit(optimizer.update)
        for _ in range(steps):
            updates, state = step(gradients_of(hvd.rank()), state)
            total += np.asarray(updates["kernel"])
        ranks = process_set.ranks
        wanted = sum(np.asarray(gradients_of(rank)["kernel"]) for rank in ranks) / len(ranks)
        bias = sum(np.asarray(gradients_of(rank)["bias"]) for rank in ranks) / len(ranks)
        np.testing.assert_allclose(updates["bias"], bias, rtol=1e-4, atol=1e-5)
        assert np.linalg.norm(total / steps - wanted) < 0.6 * np.linalg.norm(wanted)


def make_data(samples):
    """Points of ten classes around random centres; the same on every rank."""
    generator = np.random.default_rng(samples)
    centres = np.random.default_rng(1).standard_normal((10, 64))
    labels = np.arange(samples) % 10
    points = centres[labels] + 1.2 * generator.standard_normal((samples, 64))
    return jnp.asarray(points, jnp.float32), labels


def loss_of(params, inputs, labels):
    outputs = jnp.tanh(inputs @ params["hidden"]) @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


@cache
def train(compression, name, steps=80):
    """The loss on new data after training on this rank's share."""
    generator = np.random.default_rng(3)
    params = {
        "hidden": jnp.asarray(0.1 * generator.standard_normal((64, 128)), jnp.float32),
        "out": jnp.asarray(0.1 * generator.standard_normal((128, 10)), jnp.float32),
    }
    sgd = optax.sgd(0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd, name=name, compression=compression)
    inputs, labels = (x[hvd.rank() :: hvd.size()] for x in make_data(2400))

    @jax.jit
    def step(params, state):
        gradients = jax.grad(loss_of)(params, inputs, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for _ in range(steps):
        params, state = step(params, state)
    assert_same_everywhere(params)
    return float(loss_of(params, *make_data(1200)))


@pytest.mark.parametrize(
    "compression",
    [hvd.Compression.topk(0.01), hvd.Compression.topk(0.1), hvd.Compression.powersgd(rank=1)],
    ids=["topk 1 %", "topk 10 %", "powersgd"],
)
def test_trains_as_well_as_uncompressed(compression, request):
    plain = train(hvd.Compression.none, "plain")
    found = train(compression, request.node.callspec.id)
    assert plain < 0.2
    assert found < plain + 0.1
