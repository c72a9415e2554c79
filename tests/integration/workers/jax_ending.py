"""Rank 1 ends while rank 0 waits for it in a compiled program; rank 0 prints its error."""

import os
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from endings import end_rank_1

import horovod.jax as hvd

hvd.init()
# Compiled on all ranks first: the launcher ends a rank a few seconds after another one has failed.
increment, one = jax.jit(lambda x: x + 1), jnp.ones(1)
jax.block_until_ready(increment(one))
reduce = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum, "last"))
jax.block_until_ready(reduce(jnp.ones(1000)))
end_rank_1(hvd, sys.argv[1])
start = time.monotonic()
try:
    jax.block_until_ready(reduce(jnp.ones(1000)))
except (jax.errors.JaxRuntimeError, ValueError) as error:
    line = next(line for line in str(error).splitlines() if "HorovodInternalError" in line)
    usable = increment(one).tolist() == [2.0]
    print(f"usable {usable} after {time.monotonic() - start:.1f} s: {line}", flush=True)
os._exit(7)  # which ends rank 1
