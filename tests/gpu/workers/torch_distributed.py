"""`torch.distributed` on the backend ``horovod`` with CUDA tensors: collectives, DDP and FSDP."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import horovod.torch  # noqa: F401  (registers the backend)

torch.cuda.set_device(0)
dist.init_process_group("horovod")
rank, size = dist.get_rank(), dist.get_world_size()
total = size * (size + 1) / 2


def full(value, count=5):
    return torch.full((count,), float(value), device="cuda")


def equal(found, expected):
    torch.testing.assert_close(found.cpu(), torch.as_tensor(expected, dtype=torch.float32))


values = full(rank + 1)
dist.all_reduce(values)
equal(values, [total] * 5)
work = dist.all_reduce(full(rank + 1).mul_(2), async_op=True)
work.wait()
rows = [full(0) for _ in range(size)]
dist.all_gather(rows, full(rank))
for other, row in enumerate(rows):
    equal(row, [float(other)] * 5)
received = full(0, size)
dist.all_to_all_single(received, full(rank, size))
equal(received, list(range(size)))
part = full(0, 2)
dist.reduce_scatter_tensor(part, full(rank + 1, 2 * size))
equal(part, [total] * 2)
values = full(rank)
dist.broadcast(values, size - 1)
equal(values, [size - 1.0] * 5)
dist.barrier()


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()


def train(model, rows):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows[0]), rows[1]).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


generator = torch.Generator().manual_seed(2)
inputs = torch.randn(8 * size, 8, generator=generator).cuda()
labels = torch.randint(4, (8 * size,), generator=generator).cuda()
mine = slice(8 * rank, 8 * rank + 8)
alone = train(make_model(), (inputs, labels))
together = train(DistributedDataParallel(make_model()), (inputs[mine], labels[mine]))
torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-5)

from torch.distributed.fsdp import fully_shard  # noqa: E402

model = make_model()
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(5):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs[mine]), labels[mine]).backward()
    optimizer.step()
sharded = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
torch.testing.assert_close(sharded, alone, rtol=1e-3, atol=1e-5)
torch.cuda.synchronize()
dist.destroy_process_group()
