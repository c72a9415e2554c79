"""Collectives of tensors on simulated GPUs, through torch's adapter and DLPack."""

import sys

import numpy as np
import pytest
from gpu_stand_ins import PretendGpu, exchange_capsule

import horovod.torch as hvd
from horovod import _native
from horovod.core import world
from horovod.core.collectives import Collectives
from horovod.core.operations import Dtype
from horovod.numpy.adapter import DTYPES
from horovod.torch.adapter import _TorchAdapter

NUMPY = {number: dtype for dtype, number in DTYPES.items()}


class Adapter(_TorchAdapter):
    """torch's adapter, except for the methods that make tensors."""

    def empty_like(self, tensor):
        return gpu.empty(tensor.shape, tensor.dtype)

    def from_output(self, output, dtype):
        if output.device < 0:
            return output.as_numpy(dtype)
        tensor = gpu.empty(tuple(output.shape), NUMPY[Dtype(dtype)])
        output.copy_to(tensor.address.value, tensor.on_gpu_bytes, gpu.stream.value)
        return tensor

    def result(self, output, tensor):
        return self.from_output(output, DTYPES[tensor.dtype])


has_own_gpu = sys.argv[1] == "own"
hvd.init()
rank, size = hvd.rank(), hvd.size()
gpu = PretendGpu(rank if has_own_gpu else 0)
ops = Collectives(Adapter(_native.TensorReader(exchange_capsule(gpu), lambda tensor: None)))

ones = gpu.tensor([1.0, 2.0])
assert ops.allreduce(ones, op=hvd.Sum).tolist() == [size, 2 * size]
assert ops.allreduce_(gpu.tensor([[rank]], "int64"), op=hvd.Sum).tolist() == [[sum(range(size))]]
large = gpu.tensor(np.full(5_000_000, rank + 1))  # several passes
assert set(ops.allreduce_(large, op=hvd.Sum).tolist()) == {size * (size + 1) / 2}
assert ops.broadcast(gpu.tensor([float(rank)]), size - 1).tolist() == [size - 1]
gathered = ops.allgather(gpu.tensor([[rank]] * (rank + 1)))
assert gathered.tolist() == [[r] for r in range(size) for _ in range(r + 1)]
parts, counts = ops.alltoall(gpu.tensor(range(size)), [1] * size)
assert parts.tolist() == [rank] * size
assert counts.tolist() == [1] * size
assert ops.reducescatter(gpu.tensor(range(size)), op=hvd.Sum).tolist() == [rank * size]
group = ops.grouped_allreduce([ones, gpu.tensor([3], "int32")], op=hvd.Sum)
assert [tensor.tolist() for tensor in group] == [[size, 2 * size], [3 * size]]
batch = [gpu.tensor([float(i)]) for i in range(5)]
ops.synchronize(ops.allreduce_batch_async_(batch, [f"allreduce.b{i}" for i in range(5)], hvd.Sum))
assert [tensor.tolist() for tensor in batch] == [[size * i] for i in range(5)]

gpu.cuda.stand_in_set_capturing(gpu.stream, 1)
with pytest.raises(ValueError, match="being captured into a CUDA graph"):
    ops.allreduce(ones)
gpu.cuda.stand_in_set_capturing(gpu.stream, 0)

if size == 1:  # over NCCL: no thread waits for the stream
    release = gpu.hold()
    handle = ops.allreduce_async_(ones, op=hvd.Sum, prescale_factor=2.0)
    ops.synchronize(handle)
    assert ones.on_host().tolist() == [1.0, 2.0]
    assert not world.engine().confirm(0.001)
    release()
    world.confirm()
    assert ones.tolist() == [2.0, 4.0]
told = {
    "staged": "cuMemcpyAsync to the host",
    "shared": "cuIpcOpenMemHandle",
    "nccl": "ncclAllReduce",
}
print(*(word for way, name in told.items() for word in (way, gpu.calls(name) > 0)))
hvd.shutdown()
