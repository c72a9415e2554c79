"""Derivatives and batches of collectives, eagerly and compiled."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd
from horovod.jax.plugin import is_native


def gradient(mode, function, array):
    return np.asarray(mode(jax.grad(lambda x: jnp.sum(function(x))))(array))


def own(*shape):
    return jnp.arange(1.0, np.prod(shape) + 1).reshape(shape) * (hvd.rank() + 1)


@pytest.mark.parametrize(("op", "expected"), [(hvd.Sum, 1.0), (hvd.Average, None)])
def test_of_allreduce(mode, op, expected):
    weight = hvd.rank() + 1.0
    total = sum(range(1, hvd.size() + 1))
    found = gradient(mode, lambda x: hvd.allreduce(x, op) * weight, own(3, 2))
    np.testing.assert_allclose(found, np.full((3, 2), total if expected else total / hvd.size()))


def test_of_a_group_with_integers(mode):
    def loss(x):
        reduced = hvd.grouped_allreduce([x, jnp.arange(3), x * 2], hvd.Sum)
        return jnp.sum(reduced[0]) + jnp.sum(reduced[2])

    np.testing.assert_allclose(gradient(mode, loss, own(4)), np.full(4, 3.0 * hvd.size()))


def test_of_allgather(mode):
    weights = jnp.arange(3.0 * hvd.size()) * (hvd.rank() + 1)
    mean = np.mean(range(1, hvd.size() + 1))
    found = gradient(mode, lambda x: hvd.allgather(x) * weights, own(3))
    np.testing.assert_allclose(found, mean * np.arange(3 * hvd.rank(), 3 * hvd.rank() + 3))


def test_of_broadcast(mode):
    root = hvd.size() - 1
    mean = np.mean(range(1, hvd.size() + 1)) if hvd.rank() == root else 0.0
    found = gradient(mode, lambda x: hvd.broadcast(x, root) * (hvd.rank() + 1), own(5))
    np.testing.assert_allclose(found, np.full(5, mean))


def test_of_alltoall(mode):
    found = gradient(mode, lambda x: hvd.alltoall(x) * (hvd.rank() + 1), own(2 * hvd.size()))
    np.testing.assert_allclose(found, np.repeat(np.arange(1.0, hvd.size() + 1), 2))


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_of_reducescatter(mode, op):
    rows = 2 * hvd.size() + 1
    found = gradient(mode, lambda x: hvd.reducescatter(x, op) * (hvd.rank() + 1), own(rows))
    factor = hvd.size() if op == hvd.Sum else 1
    counts = [2 + (rank < 1) for rank in range(hvd.size())]
    np.testing.assert_allclose(found, factor * np.repeat(np.arange(1.0, hvd.size() + 1), counts))


def test_forward_mode(mode):
    ranks = np.arange(1.0, hvd.size() + 1)
    push = mode(lambda x, t: jax.jvp(lambda x: hvd.allreduce(x * x, hvd.Sum), (x,), (t,)))
    value, tangent = push(jnp.array(hvd.rank() + 1.0), jnp.array(1.0))
    assert float(value) == (ranks**2).sum()
    assert float(tangent) == 2 * ranks.sum()


def test_of_the_gradient(mode):
    second = jax.grad(jax.grad(lambda x: hvd.allreduce(x, hvd.Sum) ** 3))
    found = mode(second)(jnp.array(2.0))
    np.testing.assert_allclose(found, 6 * 2.0 * hvd.size() ** 3)


@pytest.mark.parametrize(
    "collective",
    [
        lambda x: hvd.allreduce(x, hvd.Sum),
        hvd.allgather,
        lambda x: hvd.broadcast(x, hvd.size() - 1),
        hvd.alltoall,
        hvd.reducescatter,
    ],
    ids=["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"],
)
def test_of_the_gradient_is_the_same_in_reverse(mode, collective):
    """What the ranks multiply it by differs, too: a broadcast's is that of the root."""
    given, direction = own(2 * hvd.size()), jnp.sin(own(2 * hvd.size()))
    first = jax.grad(lambda x: jnp.sum(collective(x) ** 3))
    found = mode(jax.grad(lambda x: jnp.vdot(first(x), direction)))(given)
    expected = mode(lambda x: jax.jvp(first, (x,), (direction,))[1])(given)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_two_derivatives_of_a_named_call_at_once():
    """Each has a name of its own: XLA may run them at the same time, in any order."""
    elements = 100_000  # fewer are done before the next is there
    x, direction = jnp.linspace(1.0, 2.0, elements), jnp.linspace(-1.0, 3.0, elements)

    def loss(x):
        return jnp.sum(hvd.allreduce(x, name="twice") ** 3)

    program = jax.jit(lambda x: jax.jvp(jax.grad(loss), (x,), (direction,)))
    for _ in range(10):
        first, second = program(x)
        np.testing.assert_allclose(first, 3 * x**2, rtol=1e-5)
        np.testing.assert_allclose(second, 6 * x * direction, rtol=1e-5, atol=1e-5)


def test_checkpoint_computes_a_named_call_again():
    """XLA may run both at the same time: nothing of the second depends on the first."""
    if not is_native():
        pytest.skip("JAX's checkpoint takes no ordered callbacks")
    x = jnp.linspace(1.0, 2.0, 10_000)

    def loss(x):
        return jnp.sum(jnp.sin(hvd.allreduce(jnp.sin(x), name="again")))

    program = jax.jit(jax.value_and_grad(jax.checkpoint(loss)))
    for _ in range(10):
        value, found = program(x)
        np.testing.assert_allclose(value, jnp.sum(jnp.sin(jnp.sin(x))), rtol=1e-5)
        np.testing.assert_allclose(found, jnp.cos(jnp.sin(x)) * jnp.cos(x), rtol=1e-4, atol=1e-5)


def test_branches_that_differ_have_derivatives_of_one_name():
    def loss(x):
        branches = [lambda x, f=f: jnp.sum(f * hvd.allreduce(x, name="branch")) for f in (2.0, 3.0)]
        return jax.lax.cond(jnp.sum(x) > 4, *branches, x)  # rank 0 takes the second

    found = jax.jit(jax.grad(loss))(own(2))
    mean = (3 + 2 * (hvd.size() - 1)) / hvd.size()
    np.testing.assert_allclose(found, [mean, mean])


def test_no_gradient_of_unequal_rows(several_ranks):
    rows = jnp.ones(2 * hvd.rank() + 2 * (hvd.rank() == hvd.size() - 1))  # none has their mean
    with pytest.raises(ValueError, match=r"allgather 'rows': .* the same number of rows on every"):
        jax.grad(lambda x: jnp.sum(hvd.allgather(x, name="rows") ** 2))(rows)
    tangents = jax.jvp(lambda x: hvd.allgather(x, name="rows"), (rows,), (rows,))[1]
    assert tangents.shape == (hvd.size() * (hvd.size() - 1) + 2,)


def test_of_what_is_not_linear():
    with pytest.raises(NotImplementedError, match="only Average and Sum"):
        jax.grad(lambda x: hvd.allreduce(x, hvd.Max))(1.0)


@pytest.mark.parametrize("remat", [False, True])
def test_of_scan(remat):
    if remat and not is_native():
        pytest.skip("JAX's checkpoint takes no ordered callbacks")

    def body(carry, x):
        carry = hvd.allreduce(carry * x)
        return carry, None

    def loss(carry, xs):
        return jax.lax.scan(jax.checkpoint(body) if remat else body, carry, xs)[0].sum()

    xs = jnp.full((4, 1), 2.0)
    found = jax.jit(jax.grad(loss))(jnp.ones(2), xs)
    np.testing.assert_allclose(found, [16.0, 16.0])


@pytest.mark.parametrize("axis", [0, 1])
def test_of_batches(mode, axis):
    batch = jnp.arange(4.0 * hvd.size() * 3).reshape(2 * hvd.size(), 2, 3) + hvd.rank()

    def all_of_them(x):
        one, two = x, x * 2
        return [
            hvd.allreduce(one, hvd.Max),
            hvd.grouped_allreduce([one, jnp.ones(2)], hvd.Sum)[0],
            hvd.allgather(one),
            hvd.broadcast(two, 0),
            hvd.alltoall(jnp.concatenate([one] * hvd.size())),
            hvd.reducescatter(two, hvd.Sum),
        ]

    batched = mode(jax.vmap(all_of_them, axis, axis))(batch)
    singly = [all_of_them(x) for x in jnp.moveaxis(batch, axis, 0)]
    for found, *expected in zip(batched, *singly, strict=True):
        np.testing.assert_array_equal(found, jnp.stack(expected, axis))


def test_no_batch_of_adasum():
    with pytest.raises(NotImplementedError, match="Adasum"):
        jax.vmap(lambda x: hvd.allreduce(x, hvd.Adasum))(jnp.ones((2, 2)))
