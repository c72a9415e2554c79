"""Imports TensorFlow's deep paths as programs of others do, and trains a step of TensorFlow 1."""

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.common.util import check_extension
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import broadcast_variables
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
from horovod.tensorflow.mpi_ops import (
    Average,
    Sum,
    _allreduce,
    _executing_eagerly,
    _normalize_name,
    allgather,
    check_num_rank_power_of_2,
    init,
    is_homogeneous,
    local_rank,
    rank,
    size,
)
from horovod.tensorflow.util import _cache, _make_subgraph, refs_to_vars, vars_to_refs

check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", hvd.__file__, "mpi_lib")
init()
assert hvd.mpi_ops.rank() == rank() == local_rank()
assert is_homogeneous()
assert check_num_rank_power_of_2(size())
assert hvd.sync_batch_norm.SyncBatchNormalization is hvd.SyncBatchNormalization
assert _normalize_name("a/b:0") == "a_b_0"

# Averages are made by hand behind a sum, and rows are gathered.
summed = _allreduce(tf.fill([3], rank() + 1.0))
assert (summed / size()).numpy().tolist() == [(size() + 1) / 2] * 3
assert hvd._allreduce(tf.constant(2), op=Sum).numpy() == 2 * size()
assert allgather(tf.fill([1], rank())).numpy().tolist() == list(range(size()))

variables = [tf.Variable(float(rank())), [tf.Variable(1.0)]]
back = refs_to_vars(vars_to_refs(variables))
assert back[0] is variables[0]
assert back[1][0] is variables[1][0]
broadcast_variables(variables[:1], root_rank=0)
assert variables[0].numpy() == 0.0


@_cache
def reducer(number: int):
    """Made once for each number, as a function of TensorFlow's."""
    reduce = hvd._make_allreduce_grads_fn("g", "", "", Compression.none, False, Average, 1.0, None)
    return _make_subgraph(lambda *grads: reduce(list(grads), variables[:1]))


assert reducer(0) is reducer(0)
assert reducer(0)(tf.constant(rank() + 1.0))[0].numpy() == (size() + 1) / 2

helper = LocalGradientAggregationHelperEager(
    2, lambda grads, _: [2 * g for g in grads], False, True
)
applied = []
for number in range(4):
    (gradient,) = helper.compute_gradients([tf.constant(1.0)], variables[:1])
    pairs = [(gradient, variables[0])]
    helper.apply_gradients(lambda: applied.append(number), None, pairs)  # noqa: B023
assert applied == [1, 3]
assert gradient.numpy() == 2.0


class Mine(hvd._DistributedOptimizer):
    """A subclass of others, with an argument of its own."""

    def __init__(self, optimizer, clip, **options):
        super().__init__(optimizer, name="Mine", **options)
        self.clip = clip

    def compute_gradients(self, *args, **kwargs):
        pairs = super().compute_gradients(*args, **kwargs)
        return [(tf.clip_by_value(g, -self.clip, self.clip), v) for g, v in pairs]


v1 = tf.compat.v1
with tf.Graph().as_default():
    assert not _executing_eagerly()
    weight = v1.get_variable("weight", initializer=1.0)
    optimizer = Mine(v1.train.GradientDescentOptimizer(1.0), 4.0, op=Sum)
    assert isinstance(optimizer, hvd._LegacyOptimizer)
    train = optimizer.minimize(weight * (rank() + 1.0))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(train)
        assert session.run(weight) == 1.0 - min(4.0, size() * (size() + 1) / 2)
print("fine")
