"""Trains on handwritten digits with FSDP2: each rank keeps a part of parameters and optimizer.

torchrun --nproc-per-node 2 examples/torch_distributed/fsdp2.py
horovodrun -np 2 python examples/torch_distributed/fsdp2.py
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("horovod")

torch.set_num_threads(1)
torch.manual_seed(1)
images, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)

mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch, target in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        correct = (model(dataset.tensors[0]).argmax(1) == dataset.tensors[1]).float().mean()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {correct:.3f}")

dist.destroy_process_group()
