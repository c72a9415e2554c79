"""Programs that JAX compiles for a GPU: collectives inside of them, and in a gradient."""

import jax
import jax.numpy as jnp
import numpy as np

import horovod.jax as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
assert jax.default_backend() == "gpu", jax.default_backend()


def equal(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected)


total = size * (size + 1) / 2


@jax.jit
def collect(x):
    summed = hvd.allreduce(x + rank, op=hvd.Sum)  # after work of the program's stream
    return (
        summed * 2,
        hvd.broadcast(x * rank, root_rank=size - 1),
        hvd.allgather(x[:2] * rank),
        hvd.alltoall(jnp.full((size,), rank, jnp.float32)),
    )


for _ in range(20):
    summed, sent, rows, exchanged = collect(jnp.ones(1000))
    equal(summed, 2 * total)
    equal(sent, size - 1)
    equal(rows, np.repeat(np.arange(size), 2))
    equal(exchanged, np.arange(size))
large = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Average))(jnp.full((1 << 22,), rank + 1.0))
equal(large, total / size)
half = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(jnp.full((33,), rank + 1, jnp.bfloat16))
equal(half.astype(jnp.float32), total)
gradient = jax.jit(jax.grad(lambda x: hvd.allreduce(x * x, op=hvd.Sum).sum()))(jnp.arange(4.0))
equal(gradient, 2 * np.arange(4.0) * size)
equal(hvd.allreduce(jnp.full(3, rank + 1.0), op=hvd.Sum), total)  # outside of jit
hvd.shutdown()
