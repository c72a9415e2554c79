"""Trains on handwritten digits with DistributedDataParallel, on Horovod's engine.

torchrun --nproc-per-node 2 examples/torch_distributed/ddp.py
horovodrun -np 2 python examples/torch_distributed/ddp.py
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("horovod")

torch.set_num_threads(1)
torch.manual_seed(1)
images, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * dist.get_world_size(), momentum=0.9)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch, target in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
    correct = (model(dataset.tensors[0]).argmax(1) == dataset.tensors[1]).float().mean()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {correct:.3f}")

dist.destroy_process_group()
