"""Ranks whose optimizers have different compressions are told at once, and can go on."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import horovod.jax as hvd
from horovod.errors import MismatchError

optax = pytest.importorskip("optax", reason="optax is not installed")

NONE, TOPK, POWERSGD = hvd.Compression.none, hvd.Compression.topk, hvd.Compression.powersgd
# From jit, what JAX makes of it; a ValueError of small programs.
FAILURE = (MismatchError, jax.errors.JaxRuntimeError, ValueError)

PAIRS = [
    (NONE, TOPK(0.1)),
    (POWERSGD(1), NONE),
    (TOPK(0.1), POWERSGD(1)),
    (TOPK(0.1), TOPK(0.01)),
    (TOPK(0.1), TOPK(0.1, half=True)),
    (POWERSGD(1), POWERSGD(1, start_after=1)),
    (POWERSGD(1), POWERSGD(2)),
    (POWERSGD(1), POWERSGD(1, seed=3)),
]
SHAPES = {
    "one matrix": {"w": (60, 50)},
    "also exact ones": {"small": (3, 2), "w": (60, 50), "w_bias": (50,)},
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_ranks_that_differ_are_told(mode, pair, shapes, several_ranks):
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    gradients = {name: jnp.ones(shape) for name, shape in shapes.items()}

    def step(compression):
        optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), "differs", compression)
        updates, _ = mode(optimizer.update)(gradients, optimizer.init(params))
        return jax.block_until_ready(updates)

    with pytest.raises(FAILURE, match="Mismatched"):
        step(pair[hvd.rank() == 0])
    for compression in pair:
        updates = step(compression)
        assert "w_bias" not in updates or (updates["w_bias"] == -1.0).all()
