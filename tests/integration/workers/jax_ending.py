"""Rank 1 ends in some way while rank 0 waits for it in a compiled program; prints what it gets."""

import os
import signal
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp

import horovod.jax as hvd

hvd.init()
reduce = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum, "last"))
jax.block_until_ready(reduce(jnp.ones(1000)))
if hvd.rank() == 1:
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif sys.argv[1] == "leaves":
        hvd.shutdown()
    signal.pause()  # until rank 0 ends the job
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which comes when rank 1 is gone
start = time.monotonic()
try:
    jax.block_until_ready(reduce(jnp.ones(1000)))
except (jax.errors.JaxRuntimeError, ValueError) as error:
    line = next(line for line in str(error).splitlines() if "HorovodInternalError" in line)
    usable = jax.jit(lambda x: x + 1)(jnp.ones(1)).tolist() == [2.0]
    print(f"usable {usable} after {time.monotonic() - start:.1f} s: {line}", flush=True)
os._exit(7)  # which ends rank 1
