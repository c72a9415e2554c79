"""Many collectives in compiled programs: orders, threads, retracing, donation, names."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import horovod.jax as hvd
from horovod.jax.plugin import is_native


def own_order(count: int) -> list[int]:
    """Another order on every rank."""
    return [int(i) for i in np.random.default_rng(hvd.rank()).permutation(count)]


@pytest.mark.skipif(
    "not is_native() or jax.default_backend() != 'cpu'",
    reason="ordered callbacks and programs on GPUs need one order on all ranks",
)
@pytest.mark.parametrize("elements", [1, 3000])
def test_64_in_orders_that_differ(elements):
    def reduce(x):
        results = {i: hvd.allreduce(x * (i + 1), hvd.Sum, f"{i}") for i in own_order(64)}
        return [results[i] for i in own_order(64)]

    compiled = jax.jit(reduce)
    for _ in range(5):
        results = compiled(jnp.ones(elements))
        for i, result in zip(own_order(64), results, strict=True):
            assert set(np.asarray(result)) == {(i + 1.0) * hvd.size()}


@pytest.mark.skipif(
    "not is_native() or jax.default_backend() != 'cpu'",
    reason="ordered callbacks and programs on GPUs need one order on all ranks",
)
def test_two_functions_at_once():
    failures = []

    def call(number):
        try:
            compiled = jax.jit(lambda x: hvd.allreduce(x * number, hvd.Sum, f"thread {number}"))
            for _ in range(50):
                assert compiled(jnp.ones(10)).tolist() == [number * hvd.size()] * 10
        except Exception as error:
            failures.append(error)

    order = (1, 2) if hvd.rank() % 2 else (2, 1)
    threads = [threading.Thread(target=call, args=(number,)) for number in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_calls_that_nobody_waits_for():
    first = jax.jit(lambda x: hvd.allreduce(x @ x, hvd.Sum))
    second = jax.jit(lambda x: hvd.allreduce(x + 1, hvd.Sum))
    x = jnp.ones((60, 60))
    results = [(first(x * i), second(x * i)) for i in range(30)]
    for i, (squared, more) in enumerate(results):
        assert float(squared[0, 0]) == i * i * 60 * hvd.size()
        assert float(more[0, 0]) == (i + 1) * hvd.size()


def test_ranks_that_trace_other_things_besides():
    for i in range(hvd.rank()):
        jax.jit(lambda x, i=i: x + i)(jnp.ones(i + 1))
    step = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum) + hvd.allreduce(2 * x, hvd.Sum))
    for _ in range(hvd.rank()):
        step.lower(jnp.ones(5))
    for elements in (3, 4, 3):
        assert step(jnp.ones(elements)).tolist() == [3.0 * hvd.size()] * elements


def test_an_inlined_function_that_is_called_twice():
    inner = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum), inline=True)
    both = jax.jit(lambda x: (inner(x), inner(x * 2)))
    for _ in range(10):
        one, two = both(jnp.ones(200))
        assert float(one[0]) == hvd.size()
        assert float(two[0]) == 2 * hvd.size()


def test_donation_is_in_place():
    step = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum), donate_argnums=0)
    x = jnp.ones(100_000)
    address = x.unsafe_buffer_pointer()
    result = step(x)
    assert x.is_deleted()
    if is_native():
        assert result.unsafe_buffer_pointer() == address
    assert float(result[-1]) == hvd.size()


def test_what_is_not_donated_stays():
    x = jnp.ones(1000)
    result = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))(x)
    assert set(np.asarray(x)) == {1.0}
    assert set(np.asarray(result)) == {float(hvd.size())}


def test_eager_results_are_new_arrays():
    x = jnp.ones(100_000)
    result = hvd.allreduce(x, hvd.Sum)
    assert isinstance(result, jax.Array)
    assert float(result[0]) == hvd.size()
    assert set(np.asarray(x)) == {1.0}


def test_in_branches_and_loops():
    @jax.jit
    def run(x, flag):
        x = jax.lax.cond(flag, lambda x: hvd.allreduce(x, hvd.Sum), lambda x: x, x)
        return jax.lax.fori_loop(0, 3, lambda _, x: hvd.allreduce(x, hvd.Average) + 1, x)

    assert run(jnp.ones(2), True).tolist() == [hvd.size() + 3.0] * 2
    assert run(jnp.ones(2), False).tolist() == [4.0] * 2


@pytest.mark.parametrize("devices", [1, 2])
def test_of_arrays_with_a_sharding(devices):
    mesh = Mesh(np.array(jax.devices()[:devices]), "d")
    x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("d")))
    for result in hvd.allreduce([x, x], hvd.Sum), hvd.grouped_allreduce([x, x], hvd.Sum):
        assert result[1].sharding == x.sharding
        np.testing.assert_array_equal(result[1], np.arange(8.0) * hvd.size())
    if is_native() and mesh.size > 1:
        with pytest.raises(NotImplementedError, match="devices of this process"):
            jax.jit(hvd.allreduce)(x)


def test_a_result_without_elements_on_some_ranks():
    scattered = jax.jit(lambda x: hvd.reducescatter(x, hvd.Sum))(jnp.ones((1, 3)))
    assert scattered.shape == ((hvd.rank() == 0) * 1, 3)
    gathered = jax.jit(hvd.allgather)(scattered[:0])
    assert gathered.shape == (0, 3)
