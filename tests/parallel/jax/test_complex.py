"""Complex numbers, which travel as pairs of real ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd


def own(rank=None, count=6):
    """Numbers whose sums have no rounding."""
    rank = hvd.rank() if rank is None else rank
    return np.arange(count, dtype=np.complex64) * np.complex64(complex(rank + 1, -2 * rank))


def test_collectives(mode):
    ranks = range(hvd.size())
    total = sum(map(own, ranks))

    @mode
    def run(z):
        return (
            hvd.allreduce(z, op=hvd.Sum),
            hvd.grouped_allreduce([z, z.real], op=hvd.Sum)[0],
            hvd.broadcast(z, hvd.size() - 1),
            hvd.allgather(z),
            hvd.alltoall(jnp.tile(z[:1] + hvd.rank(), hvd.size())),
            hvd.reducescatter(jnp.tile(z, hvd.size()), op=hvd.Sum),
        )

    found = run(jnp.asarray(own()))
    expected = (total, total, own(hvd.size() - 1), np.concatenate([own(rank) for rank in ranks]))
    expected += (np.arange(hvd.size(), dtype=np.complex64), total)
    for result, right in zip(found, expected, strict=True):
        assert result.dtype == jnp.complex64
        np.testing.assert_array_equal(result, right)


def test_gradient(mode):
    def loss(z):
        return (jnp.abs(hvd.allreduce(z, op=hvd.Average)) ** 2).sum()

    mean = sum(map(own, range(hvd.size()))) / hvd.size()
    found = mode(jax.grad(loss))(jnp.asarray(own()))
    np.testing.assert_allclose(found, 2 * mean.conj(), rtol=1e-5)


def test_what_complex_numbers_do_not_have_is_refused(mode):
    with pytest.raises(ValueError, match=r"allreduce 'z': complex numbers have no Min; they have"):
        mode(lambda z: hvd.allreduce(z, op=hvd.Min, name="z"))(jnp.asarray(own()))


@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "sharded"])
def test_optimizer(mode, sharded):
    optax = pytest.importorskip("optax", reason="optax is not installed")
    params = {"z": jnp.ones(5, jnp.complex64), "x": jnp.ones(3)}
    optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), sharded=sharded)
    state = optimizer.init(params)
    gradients = {"z": jnp.asarray(own(count=5)), "x": jnp.full(3, float(hvd.rank()))}
    updates, _ = mode(optimizer.update)(gradients, state, params)
    mean = sum(own(rank, 5) for rank in range(hvd.size())) / hvd.size()
    np.testing.assert_allclose(updates["z"], -mean, rtol=1e-6)
    np.testing.assert_allclose(updates["x"], np.full(3, -(hvd.size() - 1) / 2))
