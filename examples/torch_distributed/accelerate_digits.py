"""Trains on handwritten digits with Accelerate, on Horovod's engine.

torchrun --nproc-per-node 2 examples/torch_distributed/accelerate_digits.py
horovodrun -np 2 python examples/torch_distributed/accelerate_digits.py
"""

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

# On CPUs Accelerate asks for Gloo, unless a process group is there.
dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "horovod")
accelerator = Accelerator(cpu=True)

torch.set_num_threads(1)
torch.manual_seed(1)
images, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
loader = DataLoader(dataset, batch_size=32, shuffle=True)

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * accelerator.num_processes, momentum=0.9)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(3):
    correct = []
    for batch, target in loader:
        optimizer.zero_grad()
        output = model(batch)
        loss = torch.nn.functional.cross_entropy(output, target)
        accelerator.backward(loss)
        optimizer.step()
        correct.append(accelerator.gather_for_metrics((output.argmax(1) == target).float()))
    mean = accelerator.reduce(loss.detach(), "mean")
    accelerator.print(f"epoch {epoch}: loss {mean:.5f}, accuracy {torch.cat(correct).mean():.3f}")

dist.destroy_process_group()
