"""Learn to read handwritten digits on processes of a Spark cluster.

    python examples/spark/run.py --processes 2

or with spark-submit, on a cluster. Every process trains on its shard of the images and returns its
results; the script compares them. Exits non-zero when the accuracy on unseen images is too low or
the weights differ.
"""

import argparse
import hashlib
import sys

import torch
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import horovod.spark
import horovod.torch as hvd


def train(epochs: int, rate: float, batch_size: int) -> tuple[float, str]:
    """Train in a process; returns the accuracy on unseen images and a hash of the weights."""
    hvd.init()
    torch.set_num_threads(1)  # enough for 8 x 8 pixels
    training, test = load_data()
    sampler = DistributedSampler(training, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(training, batch_size=batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")  # appears on the driver
    images, labels = test[:]
    accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
    return accuracy, digest(model)


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Images for training, and others for the test."""
    images, labels = load_digits(return_X_y=True)
    tensors = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    parts = train_test_split(*tensors, test_size=0.25, random_state=0)
    return TensorDataset(parts[0], parts[2]), TensorDataset(parts[1], parts[3])


def digest(model: nn.Module) -> str:
    """A hash of the weights."""
    data = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    return hashlib.sha256(data).hexdigest()


def main() -> int:
    args = parse_arguments()
    builder = SparkSession.builder.appName("digits")
    if args.master:
        builder = builder.master(args.master)
    spark = builder.getOrCreate()
    results = horovod.spark.run(
        train, args=(args.epochs, args.rate, args.batch_size), num_proc=args.processes
    )
    spark.stop()
    accuracy = results[0][0]
    print(f"test accuracy {accuracy:.4f}")
    if len({found for _, found in results}) > 1:
        sys.exit("the weights differ between processes")
    print(f"weights are bitwise equal on {len(results)} process(es)")
    return 0 if accuracy >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, help="default: as many as Spark has cores")
    parser.add_argument("--master", help="Spark's master; default that of spark-submit, or local")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate of one process")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--min-accuracy", type=float, default=0.9)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
