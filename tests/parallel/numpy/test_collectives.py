"""dtype x shape x operation against NumPy, and what every rank must see alike."""

import itertools
import zlib

import numpy as np
import pytest
from arithmetic import values

import horovod.numpy as hvd

FLOATS = [np.float16, np.float32, np.float64]
INTEGERS = [np.uint8, np.int8, np.int16, np.int32, np.int64]
SHAPES = [(), (0,), (1,), (17,), (3, 0, 2), (5, 4, 3), (40_000,), (1_000_003,)]
OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]


def reduced(op, dtype, inputs):
    """What the engine must return, bit by bit: ranks in order, halves summed in float32."""
    wide = np.float32 if dtype is np.float16 else dtype
    combine = {hvd.Min: np.minimum, hvd.Max: np.maximum, hvd.Product: np.multiply}.get(op, np.add)
    total = inputs[0].astype(wide)
    for other in inputs[1:]:
        total = combine(total, other.astype(wide)).astype(wide)
    if op == hvd.Average:
        if np.dtype(dtype).kind == "f":
            total = total * wide(1 / len(inputs))
        else:
            total = np.trunc(total / len(inputs))
    return np.asarray(total).astype(dtype)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_allreduce_equals_numpy(dtype, op):
    for shape in SHAPES:
        inputs = [values(dtype, shape, rank) for rank in range(hvd.size())]
        result = hvd.allreduce(inputs[hvd.rank()], op=op, name=f"{np.dtype(dtype)}.{shape}.{op}")
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, reduced(op, dtype, inputs))


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Max, hvd.Product, hvd.Min])
def test_bool_reduces_as_logic(op):
    inputs = [np.arange(12) % (rank + 2) == 0 for rank in range(hvd.size())]
    combine = np.any if op in (hvd.Sum, hvd.Max) else np.all
    result = hvd.allreduce(inputs[hvd.rank()], op=op)
    np.testing.assert_array_equal(result, combine(inputs, axis=0))


def test_bool_has_no_average():
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(np.ones(3, bool))


def test_bfloat16_of_ml_dtypes():
    """NumPy has none of its own; TensorFlow and JAX bring this one."""
    bfloat16 = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    array = np.arange(6).reshape(3, 2).astype(bfloat16)
    results = [hvd.allreduce(array, op=hvd.Sum), hvd.allgather(array), hvd.broadcast(array, 0)]
    assert {result.dtype for result in results} == {array.dtype}
    np.testing.assert_array_equal(results[0], array * bfloat16(hvd.size()))
    np.testing.assert_array_equal(results[1], np.concatenate([array] * hvd.size()))
    np.testing.assert_array_equal(results[2], array)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_scale_factors(dtype):
    inputs = [values(dtype, (1000,), rank) for rank in range(hvd.size())]
    result = hvd.allreduce(
        inputs[hvd.rank()], op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0
    )
    scaled = [np.trunc(x * 0.5) if np.dtype(dtype).kind == "i" else x * dtype(0.5) for x in inputs]
    np.testing.assert_array_equal(result, (sum(scaled) * dtype(3)).astype(dtype))


def test_in_place_and_out_of_place():
    array = np.full(5, hvd.rank(), np.float32)
    before = array.copy()
    total = hvd.allreduce(array, op=hvd.Sum)
    np.testing.assert_array_equal(array, before)
    assert hvd.allreduce_(array, op=hvd.Sum) is array
    np.testing.assert_array_equal(array, total)


def test_results_are_bitwise_equal_on_all_ranks_and_repeatable():
    array = values(np.float32, (200_001,), hvd.rank(), 5)
    checksums = set()
    for attempt in range(3):
        handles = [hvd.allreduce_async(array[: 1000 + attempt])]  # shifts the place in the bucket
        handles.append(hvd.allreduce_async(array))
        result = [hvd.synchronize(handle) for handle in handles][1]
        checksums.add(zlib.crc32(result.tobytes()))
    assert len(set(hvd.allgather_object(tuple(checksums), name="sums"))) == 1
    assert len(checksums) == 1


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + [np.bool_])
def test_broadcast(dtype):
    for shape, root in itertools.product(SHAPES, range(hvd.size())):
        inputs = [values(dtype, shape, rank) for rank in range(hvd.size())]
        result = hvd.broadcast(inputs[hvd.rank()], root)
        np.testing.assert_array_equal(result, inputs[root])


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + [np.bool_])
@pytest.mark.parametrize("rest", [(), (3,), (2, 0), (1000, 7)])
def test_allgather_with_uneven_rows(dtype, rest):
    inputs = [values(dtype, (2 * rank % 5, *rest), rank) for rank in range(hvd.size())]
    result = hvd.allgather(inputs[hvd.rank()])
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, np.concatenate(inputs))
    result[...] = 0  # the result is the caller's to change


def test_many_in_flight_in_another_order_on_every_rank():
    count = 500
    order = np.random.default_rng(hvd.rank()).permutation(count)
    arrays = [np.full(i % 50, float(i + hvd.rank())) for i in range(count)]
    handles = {i: hvd.allreduce_async_(arrays[i], name=f"t{i}", op=hvd.Sum) for i in order}
    for i in reversed(order):
        assert hvd.synchronize(handles[i]) is arrays[i]
    offset = sum(range(hvd.size()))
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(array, np.full(i % 50, float(hvd.size() * i + offset)))


def test_handles_can_be_used_once_and_polled_any_time():
    handle = hvd.allreduce_async(np.ones(3))
    while not hvd.poll(handle):
        pass
    assert hvd.synchronize(handle) is not None
    assert hvd.synchronize(handle) is None
    assert hvd.poll(handle)


NAMES = [
    "ä/重み:0",
    "x" * 5000,
    "y" * 200_000,
    " ",
    "",
    "a'b\"c\n",
    "\0",
    "a\0b",
    "🐎" * 300,
    "%s{}",
]


def test_names_may_be_long_and_in_any_script():
    for name in NAMES:
        assert hvd.allreduce(np.ones(2), name=name, op=hvd.Sum)[0] == hvd.size()
        assert len(hvd.allgather(np.ones(2), name)) == 2 * hvd.size()
        results = hvd.grouped_allreduce([np.ones(2)] * 3, name=name, op=hvd.Sum)
        assert [result[0] for result in results] == [hvd.size()] * 3


def test_names_that_differ_little_are_different():
    names = [*NAMES, *(name + "z" for name in NAMES), "a\0c", "x" * 4999 + "y"]
    order = np.random.default_rng(hvd.rank()).permutation(len(names))
    handles = {
        i: hvd.allreduce_async(np.full(3, i), name=names[i], op=hvd.Sum) for i in map(int, order)
    }
    for i, handle in handles.items():
        assert hvd.synchronize(handle).tolist() == [i * hvd.size()] * 3


def test_barrier_and_objects():
    hvd.barrier()
    thing = {"rank": hvd.rank(), "f": lambda x: x + 1, "none": None}
    received = hvd.broadcast_object(thing, root_rank=hvd.size() - 1)
    assert received["rank"] == hvd.size() - 1
    assert received["f"](1) == 2
    gathered = hvd.allgather_object("x" * hvd.rank() * 1000, name="texts")
    assert gathered == ["x" * rank * 1000 for rank in range(hvd.size())]


def test_world_numbers():
    assert 0 <= hvd.rank() < hvd.size()
    assert hvd.local_size() == hvd.size()
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous()
    assert sorted(hvd.allgather_object(hvd.rank())) == list(range(hvd.size()))
    assert hvd.gloo_built()
    assert hvd.gloo_enabled() is not hvd.mpi_enabled()
    if hvd.mpi_enabled():
        assert hvd.mpi_built()
        assert isinstance(hvd.mpi_threads_supported(), bool)
    else:
        with pytest.raises(ValueError, match="MPI is not enabled"):
            hvd.mpi_threads_supported()


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers(dtype):
    inputs = [
        np.arange(6).astype(dtype) * dtype(complex(rank + 1, -rank)) for rank in range(hvd.size())
    ]
    own = inputs[hvd.rank()]
    reduced_rows = hvd.allgather(hvd.reducescatter(own, op=hvd.Sum))
    for result in (hvd.allreduce(own, op=hvd.Sum), reduced_rows):
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, sum(inputs))
    np.testing.assert_array_equal(hvd.allgather(own), np.concatenate(inputs))
    with pytest.raises(ValueError, match=r"'z': complex numbers have no Product; they have Sum"):
        hvd.allreduce(own, op=hvd.Product, name="z")
