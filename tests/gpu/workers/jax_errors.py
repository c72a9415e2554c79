"""Errors of collectives in programs that JAX compiles for a GPU: a mismatch, then a lost rank."""

import os
import signal

import jax
import jax.numpy as jnp

import horovod.jax as hvd

hvd.init()
rank = hvd.rank()
total = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))


def failure_of(length):
    try:
        jax.block_until_ready(total(jnp.ones(length)))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        return str(error)
    raise AssertionError("no error")


for _ in range(3):
    assert "shapes must match" in failure_of(2 + rank)
    assert total(jnp.ones(2)).tolist() == [2, 2]
if rank == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of the launcher, when rank 1 is gone
assert total(jnp.ones(2)).tolist() == [2, 2]
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
print("rank 0 goes on after", failure_of(2), flush=True)
