"""Every collective on GPU tensors: results, dtypes, streams, views, graphs."""

import sys
import warnings

import pytest
import torch

import horovod.torch as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
device = torch.device("cuda", rank if "own" in sys.argv else 0)
torch.cuda.set_device(device)
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def full(value, count=5, dtype=torch.float32):
    return torch.full((count,), value, dtype=dtype, device=device)


def equal(found, expected, dtype=torch.float32):
    assert found.device == device
    torch.testing.assert_close(found, torch.tensor(expected, dtype=dtype, device=device))


total = size * (size + 1) // 2
for dtype in FLOATS + INTEGERS:
    equal(hvd.allreduce(full(rank + 1, dtype=dtype), op=hvd.Sum), [total] * 5, dtype)
    equal(hvd.allreduce(full(rank + 1, dtype=dtype), op=hvd.Max), [size] * 5, dtype)
    equal(hvd.broadcast(full(rank, dtype=dtype), size - 1), [size - 1] * 5, dtype)
    rows = hvd.allgather(full(rank, count=rank + 1, dtype=dtype))
    equal(rows, [r for r in range(size) for _ in range(r + 1)], dtype)
for dtype in FLOATS:
    equal(hvd.allreduce(full(rank + 1, dtype=dtype)), [total / size] * 5, dtype)
    scaled = hvd.allreduce(full(1, dtype=dtype), op=hvd.Sum, prescale_factor=0.5)
    equal(scaled, [size / 2] * 5, dtype)
equal(hvd.allreduce(full(True, dtype=torch.bool), op=hvd.Sum), [True] * 5, torch.bool)
for dtype in FLOATS:
    equal(hvd.allreduce(full(2.0, dtype=dtype), op=hvd.Adasum), [2.0] * 5, dtype)
parts = hvd.reducescatter(torch.arange(2 * size + 1, device=device).float(), op=hvd.Sum)
begin = 2 * rank + min(rank, 1)
equal(parts, [size * i for i in range(begin, begin + 2 + (rank == 0))])
received, counts = hvd.alltoall(full(rank, count=size), splits=[1] * size)
equal(received, list(range(size)))
assert counts.tolist() == [1] * size
many = [full(i) for i in range(50)]
hvd.grouped_allreduce_(many, op=hvd.Sum)
for i, tensor in enumerate(many):
    equal(tensor, [size * i] * 5)
large = full(1.0, count=50_000_000)
hvd.allreduce_(large, op=hvd.Sum)
assert bool((large == size).all())
assert hvd.allreduce(torch.empty(0, device=device)).shape == (0,)
hvd.barrier()

side = torch.cuda.Stream()
with torch.cuda.stream(side):
    equal(hvd.allreduce(full(1.0) + 1.0, op=hvd.Sum), [2.0 * size] * 5)
handle = hvd.allreduce_async(full(3.0), op=hvd.Sum)
with torch.cuda.stream(side):  # waited for on another stream than the one it was started on
    equal(hvd.synchronize(handle) + 1, [3.0 * size + 1] * 5)
torch.cuda.synchronize()

warnings.filterwarnings("ignore", "The CUDA Graph is empty")
static = full(1.0)
graph = torch.cuda.CUDAGraph()
with pytest.raises(ValueError, match="captured into a CUDA graph"), torch.cuda.graph(graph):
    hvd.allreduce_(static)
torch.cuda.synchronize()
equal(hvd.allreduce(static, op=hvd.Sum), [size] * 5)
if rank == 0:
    hvd.allreduce(full(1.0), name="last", op=hvd.Sum)
hvd.join()
hvd.shutdown()
