"""Adasum and the learning rate: train with Average, Sum and Adasum at several rates.

    horovodrun -np 4 python examples/pytorch/adasum.py

Average needs a larger rate when there are more ranks, and Sum a smaller one. Adasum uses the
rates unchanged: it sums gradients of different directions and averages similar ones. Every row of
the table is a separate training, from the same weights and on the same batches.
"""

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812

import horovod.torch as hvd

OPS = {"Average": hvd.Average, "Sum": hvd.Sum, "Adasum": hvd.Adasum}


def main() -> int:
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(1)  # enough for 8 x 8 pixels
    images, labels = load_digits(return_X_y=True)
    data = torch.tensor(images).float() / 16, torch.tensor(labels)
    say(f"{hvd.size()} rank(s), {args.steps} steps of {args.batch_size} images per rank")
    say("reduce op     rate    loss  accuracy")
    for name in args.ops:
        for rate in args.rates:
            loss, accuracy = train(data, OPS[name], rate, args)
            say(f"{name:9s} {rate:8g}  {loss:6.3f}    {accuracy:.3f}")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", nargs="+", choices=OPS, default=list(OPS))
    parser.add_argument("--rates", type=float, nargs="+", default=[0.05, 0.2, 0.8, 3.2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def train(
    data: tuple[torch.Tensor, torch.Tensor], op: int, rate: float, args: argparse.Namespace
) -> tuple[float, float]:
    """Loss and accuracy on all images after ``args.steps`` steps; the same on all ranks."""
    torch.manual_seed(args.seed)  # the same weights on every rank
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), op=op
    )
    images, labels = data
    choice = torch.Generator().manual_seed(args.seed + hvd.rank())  # other images on each rank
    for _ in range(args.steps):
        batch = torch.randint(len(images), (args.batch_size,), generator=choice)
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        scores = model(images)
    accuracy = (scores.argmax(dim=1) == labels).float().mean()
    return F.cross_entropy(scores, labels).item(), accuracy.item()


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
