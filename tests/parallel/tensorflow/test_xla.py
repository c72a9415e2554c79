"""Functions that XLA compiles give what they give uncompiled, and say what XLA cannot do."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import horovod.tensorflow as hvd  # noqa: E402
from horovod.tensorflow import mpi_ops  # noqa: E402

OPS = ["Sum", "Average", "Min", "Max", "Product", "Adasum"]
DTYPES = ["uint8", "int8", "uint16", "int16", "int32", "int64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


@pytest.fixture(autouse=True)
def enabled(monkeypatch):
    monkeypatch.setenv("HOROVOD_ENABLE_XLA_OPS", "1")


def compiled(body, **options):
    return tf.function(body, jit_compile=True, **options)


def check(body, *arguments):
    """The body gives the same with XLA as without."""
    found = tf.nest.flatten(compiled(body)(*arguments))
    expected = tf.nest.flatten(tf.function(body)(*arguments))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    return found


def own(*shape):
    """Values that differ between ranks."""
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return tf.constant(values + 10 * hvd.rank())


def test_reductions():
    def body(tensor):
        factors = {"prescale_factor": 0.5, "postscale_factor": 4.0}
        ops = [getattr(hvd, op) for op in OPS]
        return [
            *(hvd.allreduce(tensor, op=op) for op in ops),
            *(hvd.allreduce(tensor, op=op, **factors) for op in ops),
            hvd.allreduce(tensor[0, 0], op=hvd.Sum),
            hvd.allreduce(tensor[:0], op=hvd.Sum),
            hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16),
            hvd.grouped_allreduce([tensor, tf.cast(tensor, tf.int32)], op=hvd.Max),
            mpi_ops.allreduce_batch([tensor, 2 * tensor], ["a", "b"]),
            hvd.reducescatter(tensor, op=hvd.Sum, prescale_factor=2.0),
            hvd.grouped_reducescatter([tensor, tensor[:3]], op=hvd.Average),
        ]

    check(body, own(5, 2))


def test_exchanges():
    rows = tf.reshape(own(4 * hvd.size()), [-1, 2])

    def body(tensor):
        return [
            hvd.allgather(tensor),
            hvd.grouped_allgather([tensor, tf.cast(tensor[:1], tf.int64)]),
            hvd.broadcast(tensor, hvd.size() - 1),
            hvd.alltoall(tensor),
            hvd.alltoall(tensor, list(range(hvd.size()))),
            mpi_ops.rank_op(),
            mpi_ops.size_op(),
            mpi_ops.local_rank_op(),
        ]

    check(body, rows)


def test_dtypes():
    def body(tensor):
        dtypes = [getattr(tf, name) for name in [*DTYPES, *FLOATS, "bool"]]
        return [hvd.allreduce(tf.cast(tensor, dtype), op=hvd.Sum) for dtype in dtypes]

    check(body, own(3))
    with pytest.raises(TypeError, match="a tensor of uint32 was given, expected uint8"):
        compiled(lambda: hvd.allreduce(tf.zeros(2, tf.uint32), op=hvd.Sum))()


def losses(tensor):
    results = [
        hvd.allreduce(tensor, op=hvd.Sum, postscale_factor=2.0),
        hvd.grouped_allreduce([tensor, tensor])[0],
        hvd.allgather(tensor),
        hvd.broadcast(tensor, 0),
        hvd.alltoall(tensor),
        hvd.alltoall(tensor, [1] * hvd.size())[0],
        *hvd.grouped_reducescatter([tensor, tensor[1:]], op=hvd.Sum),
    ]
    return tf.add_n([tf.reduce_sum(result**2) for result in results])


def gradient_of(body, tensor):
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        loss = body(tensor)
    return tape.gradient(loss, tensor)


@pytest.mark.parametrize("tape_is_inside", [False, True])
def test_gradients(tape_is_inside):
    tensor = own(2 * hvd.size(), 3)
    if tape_is_inside:
        found = compiled(lambda given: gradient_of(losses, given))(tensor)
    else:
        found = gradient_of(compiled(losses), tensor)
    np.testing.assert_allclose(found, gradient_of(tf.function(losses), tensor), rtol=1e-6)


def test_gradients_of_gradients():
    def cubes(tensor):
        results = [
            hvd.allreduce(tensor),
            hvd.allgather(tensor),
            hvd.broadcast(tensor, hvd.size() - 1),
            hvd.alltoall(tensor),
            hvd.alltoall(tensor, [1] * hvd.size())[0],  # leaves rows unsent
            *hvd.grouped_reducescatter([tensor, tensor[1:]], op=hvd.Sum),
        ]
        return tf.add_n([tf.reduce_sum(result**3) for result in results])

    def second(tensor):
        return gradient_of(lambda given: tf.reduce_sum(gradient_of(cubes, given) ** 2), tensor)

    tensor = own(2 * hvd.size(), 3) / 100
    np.testing.assert_allclose(compiled(second)(tensor), tf.function(second)(tensor), rtol=1e-5)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_training_step(is_sparse):
    """Dense gradients, and rows, of which every rank has as many."""

    def weights_after(compile_step):
        weights = tf.Variable(tf.ones([4, 3]))

        @tf.function(jit_compile=compile_step)
        def step(rows):
            with tf.GradientTape() as tape:
                used = tf.gather(weights, [1, 2]) if is_sparse else weights
                loss = tf.reduce_sum(used * rows)
            gradient = hvd.DistributedGradientTape(tape).gradient(loss, weights)
            weights.assign_sub(tf.convert_to_tensor(gradient))

        for _ in range(2):
            step(own(3))
        return weights.numpy()

    np.testing.assert_allclose(weights_after(True), weights_after(False), rtol=1e-6)


def test_rows_made_dense_in_a_graph_that_outlives_worlds(monkeypatch):
    """They are reduced in a branch there."""
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    weights = tf.Variable(tf.ones([4, 3]))

    def body(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(weights, [1, 2]) * rows)
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=True)
        return tape.gradient(loss, weights)

    check(body, own(3))


def test_many_independent_operations():
    """XLA may order them as it likes; ranks whose orders differ would wait in a circle."""

    def body(tensor):
        made = [tf.linalg.matmul(tensor + number, tensor) for number in range(40)]
        return [hvd.allreduce(one, op=hvd.Sum) for one in made]

    step = compiled(body)
    for _ in range(3):
        found = step(tf.ones([32, 32]))
    for number, one in enumerate(found):
        assert float(one[0, 0]) == hvd.size() * 32 * (number + 1)


def test_control_flow():
    def body(tensor, rounds):
        def add(number, total):
            return number + 1, total + hvd.allreduce(total, op=hvd.Sum, name="total")

        _, total = tf.while_loop(lambda number, _: number < rounds, add, [0, tensor])
        return tf.cond(
            rounds > 2, lambda: hvd.allreduce(total, name="mean"), lambda: tf.zeros_like(total)
        )

    check(body, own(3), tf.constant(3))


def test_process_sets_and_join(process_sets):
    for process_set in process_sets:
        if process_set.included():
            options = {"op": hvd.Sum, "process_set": process_set}
            check(lambda tensor, given=options: hvd.allreduce(tensor, **given), own(3))
            check(
                lambda tensor, given=process_set: hvd.allgather(tensor, process_set=given), own(3)
            )
    last = int(compiled(hvd.join)())
    assert 0 <= last < hvd.size()


def test_what_xla_cannot_do_is_said_while_the_function_is_traced():
    unknown = [tf.TensorSpec([None, 2])]
    with pytest.raises(ValueError, match=r"'mine': the tensor's shape is \(None, 2\) while"):
        compiled(lambda t: hvd.allreduce(t, name="mine"), input_signature=unknown)(own(3, 2))
    with pytest.raises(ValueError, match="splits are not known while the function is traced"):
        compiled(hvd.alltoall)(own(hvd.size()), tf.ones(hvd.size(), tf.int32))
    with pytest.raises(ValueError, match="allgather 'mine': a scalar was given, expected rows"):
        compiled(lambda t: hvd.allgather(t, name="mine"))(tf.constant(1.0))


def test_without_the_variable_an_error_names_it(monkeypatch):
    monkeypatch.delenv("HOROVOD_ENABLE_XLA_OPS")
    with pytest.raises(tf.errors.InvalidArgumentError, match="HOROVOD_ENABLE_XLA_OPS=1"):
        compiled(hvd.allreduce)(own(3))


@pytest.mark.skipif("hvd.size() < 2", reason="one rank agrees with itself")
def test_errors():
    with pytest.raises(tf.errors.InternalError, match=r"MismatchError.*'mine'.*shapes must match"):
        compiled(lambda t: hvd.allreduce(t, name="mine"))(own(2 + hvd.rank()))
    with pytest.raises(tf.errors.InternalError, match=r"'mine'.*every rank must give"):
        compiled(lambda t: hvd.allgather(t, name="mine"))(own(3 if hvd.rank() == 0 else 2))
    rows = [2, 1, 3, *[2] * hvd.size()]  # of three ranks and more the sum is as if all gave 2
    with pytest.raises(tf.errors.InternalError, match=r"'sum'.*every rank must give"):
        compiled(lambda t: hvd.allgather(t, name="sum"))(own(rows[hvd.rank()]))
    check(lambda t: hvd.allreduce(t, op=hvd.Sum), own(2))
