"""Imports torch's deep paths as programs of others do, and trains a step with what is there."""

import torch

import horovod.torch as hvd
from horovod.common.elastic import AbstractObjectState, HostsUpdatedInterrupt, State
from horovod.common.exceptions import HorovodInternalError
from horovod.common.util import check_extension, num_rank_is_power_2
from horovod.torch.compression import Compressor
from horovod.torch.functions import broadcast_object, broadcast_optimizer_state
from horovod.torch.mpi_ops import (
    Average,
    Sum,
    allreduce_async_,
    handle_average_backwards_compatibility,
    rank,
    size,
    synchronize,
)
from horovod.torch.optimizer import _DistributedOptimizer
from horovod.torch.sync_batch_norm import _SyncBatchNorm

check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", hvd.__file__, "mpi_lib_v2")


class Halves(Compressor):
    """Of others: the context comes by its name."""

    @staticmethod
    def compress(tensor):
        return tensor / 2, tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return (tensor * 2).to(ctx)


hvd.init()
assert hvd.mpi_ops.rank() == rank()
assert hvd.sync_batch_norm.SyncBatchNorm is hvd.SyncBatchNorm
assert num_rank_is_power_2(size())
assert issubclass(AbstractObjectState, State)
assert not issubclass(HostsUpdatedInterrupt, HorovodInternalError)
assert handle_average_backwards_compatibility(Sum, None) == Sum

# Averages are made by hand behind a sum.
averaged = synchronize(allreduce_async_(torch.full([3], rank() + 1.0), None, "mean", Sum)) / size()
assert averaged.tolist() == [(size() + 1) / 2] * 3

model = torch.nn.Linear(2, 1)
torch.nn.init.constant_(model.weight, rank())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=Halves)
assert isinstance(optimizer, _DistributedOptimizer)
broadcast_optimizer_state(optimizer, root_rank=0)
assert all(not param.grad.any() for param in model.parameters())
assert (optimizer.op, optimizer.gradient_predivide_factor) == (Average, 1.0)

model(torch.ones(4, 2) * (rank() + 1)).sum().backward()
if optimizer._handles:
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
weights = broadcast_object(model.weight.tolist(), 0)
assert weights == model.weight.tolist()

rows = _SyncBatchNorm.apply(torch.arange(6.0).view(3, 2), None, None, None, None, 1e-5, 0.1)
assert abs(float(hvd.allreduce(rows.mean(), op=Sum))) < 1e-5
print("fine")
