"""What only graphs have: names, static shapes, numbers of nodes, retracing, control flow."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import horovod.tensorflow as hvd  # noqa: E402
from horovod.tensorflow import implementation, mpi_ops, names  # noqa: E402
from horovod.tensorflow.python_ops import PythonOps  # noqa: E402

v1 = tf.compat.v1


def collectives_in(graph):
    """The graph's nodes that run collectives."""
    kinds = ("Allreduce", "Allgather", "Broadcast", "Alltoall", "Reducescatter")
    types = {"PyFunc", *(f"Horovod{kind}" for kind in kinds)}
    return [node for node in graph.get_operations() if node.type in types]


def node_names(body):
    with tf.Graph().as_default() as graph:
        body()
        return [node.name for node in collectives_in(graph)]


def test_nodes_are_called_like_their_operations():
    def body():
        given = v1.placeholder(tf.float32, [3], name="in-put")
        mpi_ops.allreduce(given)
        mpi_ops.allreduce(given)
        mpi_ops.allreduce(given, "mine:0")
        with tf.name_scope("scope"):
            mpi_ops.allgather(given)
            mpi_ops.allgather(given, "mine")
            mpi_ops.broadcast(given, 0, ignore_name_scope=True)
            mpi_ops.broadcast(given, 0, "its", ignore_name_scope=True)
        mpi_ops.grouped_allreduce([given, given])
        mpi_ops.grouped_allreduce([given, given], "some")
        mpi_ops.alltoall(tf.constant([1.0]))
        mpi_ops.reducescatter(given)
        mpi_ops.allreduce_batch([given, given], ["a", "b"])

    assert node_names(body) == [
        "HorovodAllreduce_in_put_0",
        "HorovodAllreduce_in_put_0_1",
        "mine_0",
        "scope/HorovodAllgather_in_put_0",
        "scope/mine",
        "HorovodBroadcast_in_put_0",
        "its",
        "HorovodGroupedAllreduce",
        "some",
        "HorovodAlltoall_Const_0",
        "HorovodReducescatter_in_put_0",
        "HorovodAllreduce",
    ]


def test_names_of_operations():
    tensor = tf.ones(1)
    assert names.name_of("HorovodX", None, tensor) == "HorovodX"
    assert names.name_of("HorovodX", "its own:0", tensor) == "its own:0"
    assert names.group_name("HorovodX", None) == "HorovodX"
    assert names.derived(["a", "b"], "grad") == ["a_grad", "b_grad"]
    with tf.Graph().as_default(), tf.name_scope("s"):
        place = v1.placeholder(tf.float32, name="p")
        assert names.name_of("HorovodX", None, place) == "s/HorovodX_s_p_0"
        assert names.name_of("HorovodX", "its own:0", place) == "s/its_own_0"
        assert names.name_of("HorovodX", "its", place, True) == "its"
        assert names.name_of("HorovodX", "its", place, True) == "its_1"
        assert names.derived(["s/x"], "grad") == ["s/x_grad"]


def test_functions_inside_of_functions_have_names_of_their_own():
    """What an inner function reduces may be under way with what the outer one does."""
    inner = tf.function(lambda tensor: mpi_ops.allreduce(tensor, "mean", hvd.Sum))

    @tf.function
    def outer(tensor):
        first = mpi_ops.allreduce(10 * tensor, "mean", hvd.Sum)
        return (
            first,
            inner(tensor),
            inner(2 * tensor[:1]),
            tf.cond(
                tf.reduce_any(tensor > 0),
                lambda: mpi_ops.allreduce(3 * tensor, "mean", hvd.Sum),
                lambda: tensor,
            ),
        )

    for _ in range(5):
        found = [float(value[0]) for value in outer(tf.ones(3))]
        assert found == [factor * hvd.size() for factor in (10, 1, 2, 3)]


def test_ranks_may_have_traced_other_functions_before():
    for number in range(hvd.rank()):
        tf.function(lambda t, n=number: mpi_ops.broadcast(t + n, 0)).get_concrete_function(
            tf.ones(3)
        )
    inner = tf.function(lambda tensor: mpi_ops.allreduce(tensor, op=hvd.Sum))
    outer = tf.function(lambda tensor: inner(tensor) + mpi_ops.allreduce(tensor, op=hvd.Sum))
    np.testing.assert_array_equal(outer(tf.ones(2)), [2.0 * hvd.size()] * 2)


def test_threads_choose_the_implementation_one_at_a_time(monkeypatch):
    inside, met = threading.Lock(), []

    def choose():
        met.append(inside.acquire(blocking=False))
        inside.release()

    monkeypatch.setattr(implementation, "_chosen", choose)
    threads = [threading.Thread(target=implementation.implementation) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert met == [True] * 8


def test_a_tensor_from_outside_does_not_give_its_number_to_a_name():
    """Such numbers differ between ranks that did different things before."""
    outside = tf.ones(3)
    traced = tf.function(lambda: mpi_ops.allreduce(outside)).get_concrete_function()
    assert [node.name for node in collectives_in(traced.graph)] == ["HorovodAllreduce"]


def test_one_node_for_a_batch_and_for_a_group():
    def body():
        tensors = [tf.zeros(i) for i in range(20)]
        mpi_ops.allreduce_batch(tensors, [f"t{i}" for i in range(20)])
        mpi_ops.broadcast_batch(tensors, [f"b{i}" for i in range(20)], 0)
        mpi_ops.grouped_allreduce(tensors, "group")
        mpi_ops.grouped_allgather([tf.zeros([1])] * 20, "gathered")

    assert len(node_names(body)) in (4, 5)  # a batch may be split where a core is spare


def test_static_shapes():
    with tf.Graph().as_default():
        known = v1.placeholder(tf.float32, [4, 3])
        partly = v1.placeholder(tf.float32, [None, 3])
        unknown = v1.placeholder(tf.float32)
        for call in (mpi_ops.allreduce, lambda t: mpi_ops.broadcast(t, 0)):
            assert call(known).shape.as_list() == [4, 3]
            assert call(partly).shape.as_list() == [None, 3]
            assert call(unknown).shape.rank is None
        for call in (mpi_ops.allgather, mpi_ops.reducescatter, lambda t: mpi_ops.alltoall(t)[0]):
            assert call(known).shape.as_list() == [None, 3]
            assert call(partly).shape.as_list() == [None, 3]
            assert call(unknown).shape.rank is None
        assert mpi_ops.alltoall(known)[1].shape.rank == 1
        for number in (mpi_ops.size_op(), mpi_ops.rank_op(), mpi_ops.join()):
            assert (number.shape.as_list(), number.dtype) == ([], tf.int32)


def test_a_function_traced_for_several_shapes():
    traces = []

    @tf.function
    def total(tensor):
        traces.append(tensor.shape)
        return mpi_ops.allreduce(tensor, "total", hvd.Sum) + mpi_ops.allreduce(tensor)

    for _ in range(3):
        for rows in (1, 5, 1000):
            result = total(tf.fill([rows], float(hvd.rank())))
            expected = sum(range(hvd.size())) * (1 + 1 / hvd.size())
            np.testing.assert_allclose(result, np.full(rows, expected), rtol=1e-6)
    assert len(traces) == 3


def test_two_models_in_one_process():
    """Equal graphs with equal names, used in turn and from each other's results."""

    def make_model():
        weight = tf.Variable(tf.ones([2, 2]))

        @tf.function
        def step(given):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.matmul(given, weight))
            (gradient,) = tape.gradient(loss, [weight])
            weight.assign_sub(mpi_ops.allreduce(gradient))
            return mpi_ops.allreduce(loss)

        return weight, step

    models = [make_model(), make_model()]
    given = tf.ones([1, 2]) * (hvd.rank() + 1)
    for _, step in models * 2:
        step(given)
    mean = (hvd.size() + 1) / 2
    for weight, _ in models:
        np.testing.assert_allclose(weight, np.full((2, 2), 1 - 2 * mean))


def test_numbers_of_the_world(process_sets, mode):
    def body(_):
        sets = [entry.process_set_id for entry in process_sets]
        return [
            mpi_ops.rank_op(),
            mpi_ops.local_rank_op(),
            mpi_ops.local_size_op(),
            [mpi_ops.size_op(number) for number in sets],
            [mpi_ops.process_set_included_op(number) for number in sets],
        ]

    rank, local_rank, local_size, *others = mode(body, [])
    assert (rank, local_rank, local_size) == (hvd.rank(), hvd.local_rank(), hvd.local_size())
    sizes = [entry.size() for entry in process_sets]
    assert others == [*sizes, *(entry.included() for entry in process_sets)]


def test_collectives_in_conditions_and_loops():
    @tf.function
    def body(is_wanted):
        total = tf.zeros([2])
        for _ in tf.range(3):
            # Nothing else keeps the next round from starting under the same name.
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)
            total += mpi_ops.allreduce(tf.ones([2]), "in the loop", hvd.Sum)
        if is_wanted:
            total += mpi_ops.allreduce(tf.ones([2]), "if", hvd.Sum)
        return total

    for is_wanted in (True, False):
        result = body(tf.constant(is_wanted))
        assert result.numpy().tolist() == [(3.0 + is_wanted) * hvd.size()] * 2


def test_collectives_in_a_tf1_condition_and_loop():
    with tf.Graph().as_default() as graph:
        v1.disable_control_flow_v2()
        try:
            before = mpi_ops.allreduce(tf.ones([2]), "before", hvd.Sum)
            total = v1.while_loop(
                lambda i, _: i < 3,
                lambda i, sum: (i + 1, sum + mpi_ops.allreduce(tf.ones([2]), "loop", hvd.Sum)),
                [tf.constant(0), before],
                parallel_iterations=1,
            )[1]
            chosen = v1.cond(total[0] > 0, lambda: mpi_ops.allreduce(total, "cond"), lambda: -total)
            after = mpi_ops.allreduce(chosen, "after")
        finally:
            v1.enable_control_flow_v2()
        with v1.Session(graph=graph) as session:
            assert session.run(after).tolist() == [4.0 * hvd.size()] * 2


def test_graphs_are_freed():
    if isinstance(mpi_ops.implementation(), PythonOps):
        pytest.skip("TensorFlow keeps every graph in which tf.custom_gradient was used")

    def make():
        with tf.Graph().as_default() as graph:
            mpi_ops.allreduce(tf.ones([2]))
            return weakref.ref(graph)

    gone = make()
    gc.collect()
    assert gone() is None
