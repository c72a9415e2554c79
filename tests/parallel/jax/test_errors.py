"""What goes wrong, and that everything works afterwards."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import horovod.jax as hvd
from horovod.errors import MismatchError

# JAX raises a ValueError of small programs that it runs on the caller's thread.
FAILURE = (jax.errors.JaxRuntimeError, ValueError)
needs_two = pytest.mark.usefixtures("several_ranks")


def works():
    return jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))(jnp.ones(2)).tolist() == [hvd.size()] * 2


@needs_two
def test_a_mismatch_is_raised_eagerly():
    with pytest.raises(MismatchError, match="shapes must match"):
        hvd.allreduce(jnp.ones(2 + hvd.rank()), name="mismatch")
    assert works()


@needs_two
def test_a_mismatch_surfaces_from_jit():
    reduce = jax.jit(lambda x: hvd.allreduce(x, name="mismatch in jit"))
    for _ in range(2):
        with pytest.raises(FAILURE) as failure:
            jax.block_until_ready(reduce(jnp.ones(2 + hvd.rank())))
        assert "HorovodInternalError (MismatchError)" in str(failure.value)
        assert "shapes must match" in str(failure.value)
        assert works()


@needs_two
def test_unequal_parts_surface_from_jit():
    gather = jax.jit(lambda x: hvd.allgather(x, name="unequal"))
    with pytest.raises(FAILURE, match="every rank must give the same number of rows"):
        jax.block_until_ready(gather(jnp.ones(3 if hvd.rank() else 1)))
    assert works()


REFUSED = {
    "op": lambda x: hvd.allreduce(x, op=17),
    "factor": lambda x: hvd.allreduce(x, prescale_factor="a"),
    "compression": lambda x: hvd.allreduce(x, compression=3),
    "root": lambda x: hvd.broadcast(x, "a"),
    "set": lambda x: hvd.allreduce(x, process_set=hvd.ProcessSet([0])),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_arguments_are_refused_at_once(mode, call):
    with pytest.raises(ValueError, match=r"."):
        mode(call)(jnp.ones(3))
    assert works()


def test_what_shapes_do_not_allow():
    with pytest.raises(ValueError, match="at least one dimension"):
        jax.jit(hvd.allgather)(1.0)
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="equal parts"):
            jax.jit(hvd.alltoall)(jnp.ones(hvd.size() + 1))
    with pytest.raises(ValueError, match="one line"):
        jax.jit(lambda x: hvd.allreduce(x, name="a\nb"))(1.0)
    with pytest.raises(IndexError):
        hvd.grouped_allreduce([])


def test_dtypes_that_are_not_supported(mode):
    with pytest.raises(FAILURE, match="not supported"):
        jax.block_until_ready(mode(hvd.allreduce)(jnp.ones(2, jnp.complex64)))
    assert works()
