"""join: what the others get while a rank has no more data, and who was last."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd

pytestmark = pytest.mark.usefixtures("several_ranks")


def test_reductions_go_on_with_zeros(mode):
    reduce = mode(lambda x: [hvd.allreduce(x, hvd.Sum, "left"), hvd.allreduce(x, name="mean")])
    reduce(jnp.ones(3))
    if hvd.rank() != 0:
        total, mean = reduce(jnp.ones(3))
        assert total.tolist() == [hvd.size() - 1] * 3
        np.testing.assert_allclose(mean, [(hvd.size() - 1) / hvd.size()] * 3)
    hvd.join()


def test_everybody_learns_who_was_last():
    assert len(set(hvd.allgather_object(hvd.join()))) == 1


def test_a_barrier():
    hvd.barrier()
