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
    rows = [2, 1, 3, *[2] * hvd.size()]  # of three ranks and more the sum is as if all gave 2
    with pytest.raises(FAILURE, match="every rank must give the same number of rows"):
        jax.block_until_ready(gather(jnp.ones(rows[hvd.rank()])))
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


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "uint32"])
def test_dtypes_that_are_not_supported(mode, dtype):
    refused = f"the array's dtype {dtype} is not supported; supported are uint8, .*, bool, bfloat16"
    with pytest.raises(ValueError, match=f"allreduce: {refused}"):
        mode(hvd.allreduce)(jnp.ones(2, dtype))
    with pytest.raises(ValueError, match=rf"allgather 'a\[1\]': {refused}"):
        mode(lambda x: hvd.allgather([jnp.ones(2), x], name="a"))(jnp.ones(2, dtype))
    with pytest.raises(ValueError, match=rf"grouped_allreduce '\[1\]': {refused}"):
        mode(lambda x: hvd.grouped_allreduce([jnp.ones(2), x]))(jnp.ones(2, dtype))
    with pytest.raises(ValueError, match=f"alltoall: {refused}"):
        hvd.alltoall(jnp.ones(2, dtype), [2] + [0] * (hvd.size() - 1))
    assert works()


def test_random_keys_are_no_numbers(mode):
    with pytest.raises(ValueError, match="key<fry> is not supported; broadcast_parameters"):
        mode(lambda key: hvd.broadcast(key, 0))(jax.random.key(1))

    def advice(key):
        bits = hvd.broadcast(jax.random.key_data(key).view("int32"), 0)
        return jax.random.wrap_key_data(bits.view("uint32"))

    for found in (mode(advice), hvd.broadcast_parameters):
        assert found(jax.random.key(hvd.rank() + 1)) == jax.random.key(1)
