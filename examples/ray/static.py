"""Learn to read handwritten digits on a fixed number of workers of a Ray cluster.

    python examples/ray/static.py --workers 2

Uses the cluster of RAY_ADDRESS, or one that runs on this machine, or starts one for the time of the
script. Every worker keeps a ``Trainer``; the script calls it for each
epoch. Exits non-zero when the accuracy on unseen images is too low or the workers'
weights differ.
"""

import argparse
import hashlib
import sys

import ray
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import horovod.torch as hvd
from horovod.ray import RayExecutor


class Trainer:
    """The state of every worker: the model, and its shard of the images."""

    def __init__(self, rate: float, batch_size: int) -> None:
        hvd.init()  # the workers' environment has their ranks
        torch.set_num_threads(1)  # enough for 8 x 8 pixels
        train, self.test = load_data()
        self.sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
        self.loader = DataLoader(train, batch_size=batch_size, sampler=self.sampler)
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=rate * hvd.size(), momentum=0.9)
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=self.model.named_parameters()
        )
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)

    def train_epoch(self, epoch: int) -> float:
        """One pass over this worker's shard; the mean loss over all workers."""
        self.sampler.set_epoch(epoch)
        total = torch.zeros(())
        for images, labels in self.loader:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        return hvd.allreduce(total / len(self.loader), name="loss").item()

    @torch.no_grad()
    def accuracy(self) -> float:
        """Accuracy on the held-back images; without collectives, so one worker can call it."""
        images, labels = self.test[:]
        return (self.model(images).argmax(dim=1) == labels).float().mean().item()

    def digest(self) -> str:
        """A hash of every bit of every parameter."""
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        return digest.hexdigest()


def main() -> int:
    args = parse_arguments()
    ray.init(log_to_driver=False)
    executor = RayExecutor(RayExecutor.create_settings(), num_workers=args.workers)
    executor.start(executable_cls=Trainer, executable_args=[args.lr, args.batch_size])
    for epoch in range(args.epochs):
        loss = executor.execute(lambda trainer, epoch=epoch: trainer.train_epoch(epoch))[0]
        print(f"epoch {epoch + 1:2d}/{args.epochs}  loss {loss:.4f}", flush=True)
    accuracy = executor.execute_single(lambda trainer: trainer.accuracy())
    equal = len(set(executor.execute(lambda trainer: trainer.digest()))) == 1
    executor.shutdown()
    print(f"test accuracy {accuracy:.4f}")
    print(f"weights are {'bitwise equal' if equal else 'NOT EQUAL'} on {args.workers} worker(s)")
    return 0 if equal and accuracy >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one worker")
    parser.add_argument("--min-accuracy", type=float, default=0.95)
    return parser.parse_args()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """The digits as [n, 64] floats in 0..1 with labels, split the same way on every worker."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images, labels, test_size=0.25, random_state=0)
    train_x, test_x, train_y, test_y = (torch.tensor(part) for part in split)
    return TensorDataset(train_x.float() / 16, train_y), TensorDataset(test_x.float() / 16, test_y)


if __name__ == "__main__":
    sys.exit(main())
