"""Learn to read handwritten digits on any number of ranks.

    horovodrun -np 2 python examples/pytorch/digits.py

Every rank trains on its own shard of the 1797 images that ship with scikit-learn; the gradients
are averaged. The five numbered lines are all that Horovod adds to a PyTorch script. Exits
non-zero when the accuracy on unseen images is too low or the ranks' weights differ.
"""

import argparse
import hashlib
import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import horovod.torch as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()  # 1: join the other ranks
    torch.set_num_threads(1)  # enough for 8 x 8 pixels
    torch.manual_seed(args.seed + hvd.rank())  # ranks start apart on purpose; 4 makes them equal

    train, test = load_data()
    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())  # 2: share data
    loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler)

    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(  # 3: average the gradients of all ranks
        optimizer, named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 4: start from rank 0's weights
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # 5: ... and rank 0's momentum

    say(f"training on {hvd.size()} rank(s), {len(train)} images, {len(test)} held back")
    start = time.perf_counter()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer)
        say(f"epoch {epoch + 1:2d}/{args.epochs}  loss {loss:.4f}")
    samples_per_s = args.epochs * sampler.total_size / (time.perf_counter() - start)

    accuracy = test_accuracy(model, test)
    equal = weights_are_equal(model)
    say(f"test accuracy {accuracy:.4f}  ({samples_per_s:.0f} samples/s over all ranks)")
    say(f"weights are {'bitwise equal' if equal else 'NOT EQUAL'} on all {hvd.size()} rank(s)")
    if args.export and hvd.rank() == 0:  # all ranks have the same model
        export(model, args.export)
    if accuracy < args.min_accuracy:
        say(f"accuracy is below {args.min_accuracy}")
    return 0 if equal and accuracy >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--min-accuracy", type=float, default=0.97)
    parser.add_argument("--export", type=Path, help="folder for what inference/serve.py serves")
    return parser.parse_args()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """The digits as [n, 1, 8, 8] floats in 0..1 with labels, split the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images, labels, test_size=0.25, random_state=0)
    train_x, test_x, train_y, test_y = (torch.tensor(part) for part in split)
    train_x, test_x = (x.float().view(-1, 1, 8, 8) / 16 for x in (train_x, test_x))
    return TensorDataset(train_x, train_y), TensorDataset(test_x, test_y)


def build_model(channel_count: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channel_count, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.4),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def train_epoch(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> float:
    """One pass over this rank's shard; the mean loss over all ranks."""
    model.train()
    total = torch.zeros(())
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return hvd.allreduce(total / len(loader), name="loss").item()


@torch.no_grad()
def test_accuracy(model: nn.Module, test: TensorDataset) -> float:
    """Accuracy on the held-back images; every rank tests each ``size``-th image."""
    model.eval()
    images, labels = test[hvd.rank() :: hvd.size()]
    correct = (model(images).argmax(dim=1) == labels).sum()
    return hvd.allreduce(correct, op=hvd.Sum, name="correct").item() / len(test)


def weights_are_equal(model: nn.Module) -> bool:
    """Whether the weights of all ranks are bitwise equal."""
    return len(set(hvd.allgather_object(weights_digest(model), name="weights"))) == 1


def weights_digest(model: nn.Module) -> str:
    """A hash of every bit of every parameter."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def export(model: nn.Module, folder: Path) -> None:
    """The weights alone, and the network with them, which needs no code of ours to run."""
    folder.mkdir(parents=True, exist_ok=True)
    model.eval()
    torch.save(model.state_dict(), folder / "weights.pt")
    images = torch.zeros(2, 1, 8, 8)
    batch = torch.export.Dim("batch")
    torch.export.save(
        torch.export.export(model, (images,), dynamic_shapes=({0: batch},)), folder / "program.pt2"
    )
    torch.jit.trace(model, images).save(folder / "script.ts")


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
