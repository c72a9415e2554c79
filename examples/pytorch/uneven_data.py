"""Ranks with unequal amounts of data, and ``join`` to wait for the longest.

    horovodrun -np 2 python examples/pytorch/uneven_data.py

Rank r holds r + 1 shares of the digits, so the higher ranks make more steps per epoch. A rank
without further data calls ``join``: from then on it contributes zeros to the other ranks'
reductions, until all ranks have joined. Exits non-zero when the accuracy is too low or the weights
differ.
"""

import argparse
import sys

import torch
from digits import build_model, load_data, say, test_accuracy, weights_are_equal
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset, Subset

import horovod.torch as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed + hvd.rank())

    train, test = load_data()
    loader = DataLoader(uneven_share(train), batch_size=args.batch_size, shuffle=True)
    model = build_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9),
        named_parameters=model.named_parameters(),
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    counts = hvd.allgather_object(len(loader), name="steps")
    say(f"steps per epoch by rank: {counts}")
    for epoch in range(args.epochs):
        train_epoch(model, loader, optimizer)
        last_rank = hvd.join()  # blocks until every rank has called it
        # Ranks that joined early missed steps: broadcast from the last rank.
        hvd.broadcast_parameters(model.state_dict(), root_rank=last_rank)
        hvd.broadcast_optimizer_state(optimizer, root_rank=last_rank)
        say(f"epoch {epoch + 1:2d}/{args.epochs}  rank {last_rank} joined last")

    accuracy, equal = test_accuracy(model, test), weights_are_equal(model)
    say(f"test accuracy {accuracy:.4f}")
    say(f"weights are {'bitwise equal' if equal else 'NOT EQUAL'} on all {hvd.size()} rank(s)")
    if accuracy < args.min_accuracy:
        say(f"accuracy is below {args.min_accuracy}")
    return 0 if equal and accuracy >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--min-accuracy", type=float, default=0.95)
    return parser.parse_args()


def uneven_share(dataset: Dataset) -> Subset:
    """Of 1 + 2 + ... + size shares rank 0 gets the first one, rank 1 the next two, and so on."""
    share_count = hvd.size() * (hvd.size() + 1) // 2
    first_share = hvd.rank() * (hvd.rank() + 1) // 2
    start, end = (
        share * len(dataset) // share_count for share in (first_share, first_share + hvd.rank() + 1)
    )
    return Subset(dataset, range(start, end))


def train_epoch(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> None:
    """One pass over this rank's data; ranks may have different numbers of steps.

    While a rank waits in ``join``, gradients are still divided by the number of all ranks, so steps
    become smaller as fewer ranks take part.
    """
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    sys.exit(main())
