"""A model on GPUs learns the same as one process with all ranks' data; AMP, channels last."""

import torch
from torch import nn

import horovod.torch as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
ROWS = 8


def make_model():
    torch.manual_seed(1)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), hvd.SyncBatchNorm(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))
    )
    return model.to("cuda", memory_format=torch.channels_last)


def train(model, optimizer, rows, scaler):
    images, labels = rows
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=scaler is not None):
            loss = nn.functional.cross_entropy(model(images), labels)
        if scaler is None:
            loss.backward()
            optimizer.step()
            continue
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    return loss.detach()


generator = torch.Generator().manual_seed(2)
images = torch.randn(ROWS * size, 3, 6, 6, generator=generator).cuda()
images = images.to(memory_format=torch.channels_last)
labels = torch.randint(4, (ROWS * size,), generator=generator).cuda()
mine = slice(rank * ROWS, (rank + 1) * ROWS)

for scaler in (None, torch.amp.GradScaler("cuda")):
    model = make_model()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    train(model, optimizer, (images[mine], labels[mine]), scaler)
    together = hvd.allgather(torch.cat([p.detach().flatten() for p in model.parameters()])[None])
    assert bool((together == together[0]).all()), "ranks have different parameters"
    if scaler is None:
        alone = make_model()
        alone[1] = nn.BatchNorm2d(8).cuda()
        train(
            alone,
            torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9),
            (images, labels),
            None,
        )
        for found, expected in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
hvd.shutdown()
