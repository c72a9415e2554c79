"""Imports MXNet's deep paths as programs of others do, and trains a step."""

import mxnet as mx

import horovod.mxnet as hvd
from horovod.mxnet.compression import Compression
from horovod.mxnet.mpi_ops import (
    Average,
    Sum,
    allreduce,
    handle_average_backwards_compatibility,
    rank,
    size,
    start_timeline,
    stop_timeline,
)

hvd.init()
assert callable(start_timeline)
assert callable(stop_timeline)
assert handle_average_backwards_compatibility(Sum, None) == Sum
assert hvd.mpi_ops.rank() == rank()

averaged = allreduce(mx.nd.full((3,), rank() + 1.0), name="mean", op=Average)
assert averaged.asnumpy().tolist() == [(size() + 1) / 2] * 3

net = mx.gluon.nn.Dense(1, in_units=1, use_bias=False)
net.initialize(mx.init.Constant(rank() + 1.0))
params = net.collect_params()
hvd.broadcast_parameters(params, root_rank=0)
trainer = hvd.DistributedTrainer(
    params, "sgd", {"learning_rate": 0.5}, compression=Compression.none
)
with mx.autograd.record():
    loss = net(mx.nd.full((1, 1), rank() + 1.0)).sum()
loss.backward()
trainer.step(1)
assert net.weight.data().asscalar() == 1.0 - 0.5 * (size() + 1) / 2
print("fine")
