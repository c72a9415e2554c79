"""Learn to read handwritten digits on ranks that come and go while it trains.

    horovodrun -np 2 --min-np 1 --max-np 4 --blacklist-cooldown-range 1 10 \\
        python examples/elastic/pytorch_digits.py --pause 0.1

Kill a rank (process ids are printed): the other ranks go on. The numbered lines
make a script elastic; see docs/elastic.md. Exits non-zero when the accuracy on unseen images is
too low or the ranks' weights differ.
"""

import argparse
import hashlib
import os
import sys
import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(1)  # enough for 8 x 8 pixels
    torch.manual_seed(args.seed)

    train, test = load_data()
    sampler = hvd.elastic.ElasticSampler(train, seed=args.seed)  # 1: knows which images are left
    loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    # 2: all that a rank needs to continue, or to start in the middle
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)
    state.register_reset_callbacks([lambda: scale_learning_rate(optimizer, args.lr)])  # 3
    if args.checkpoint and os.path.exists(args.checkpoint):
        state.load(args.checkpoint)  # 4: continue an earlier job
    equal = train_on(state, loader, args)

    accuracy = test_accuracy(model, test)  # no collectives: other ranks may have ended
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
    parser.add_argument("--commit-every", type=int, default=5, help="steps that a failure may cost")
    parser.add_argument("--checkpoint", help="file to go on from, written after every epoch")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step")
    parser.add_argument("--min-accuracy", type=float, default=0.97)
    return parser.parse_args()


@hvd.elastic.run  # 5: call it again after each change of the ranks
def train_on(state: hvd.elastic.TorchState, loader: DataLoader, args: argparse.Namespace) -> bool:
    pids = hvd.allgather_object(os.getpid(), name="pids")
    done = state.sampler.processed_num
    say(f"{hvd.size()} rank(s) go on in epoch {state.epoch + 1} after {done} images; pids {pids}")
    while state.epoch < args.epochs:
        loss = train_epoch(state, loader, args)
        state.epoch, state.batch = state.epoch + 1, 0
        state.sampler.set_epoch(state.epoch)  # 6: a new epoch: no image is done
        say(f"epoch {state.epoch:2d}/{args.epochs}  {hvd.size()} rank(s)  loss {loss:.4f}")
        state.commit()
        if args.checkpoint:
            state.save(args.checkpoint)
    return weights_are_equal(state.model)


def train_epoch(
    state: hvd.elastic.TorchState, loader: DataLoader, args: argparse.Namespace
) -> float:
    """Train on the rest of the epoch; the mean loss of this part over all ranks."""
    state.model.train()
    total, count = torch.zeros(()), 0
    for images, labels in loader:
        state.optimizer.zero_grad()
        loss = F.cross_entropy(state.model(images), labels)
        loss.backward()
        state.optimizer.step()
        total, count = total + loss.detach(), count + 1
        state.sampler.record_batch(state.batch, len(images))  # 7: these images are done
        state.batch += 1
        if state.batch % args.commit_every == 0:
            state.commit()  # 8: the point to which a failure goes back
        time.sleep(args.pause)
    return hvd.allreduce(total / max(count, 1), name="loss").item()


def scale_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Scale the rate by the number of ranks: a step uses the images of all ranks."""
    for group in optimizer.param_groups:
        group["lr"] = rate * hvd.size()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """The digits as [n, 1, 8, 8] floats in 0..1 with labels, split the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images, labels, test_size=0.25, random_state=0)
    train_x, test_x, train_y, test_y = (torch.tensor(part) for part in split)
    train_x, test_x = (x.float().view(-1, 1, 8, 8) / 16 for x in (train_x, test_x))
    return TensorDataset(train_x, train_y), TensorDataset(test_x, test_y)


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
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


@torch.no_grad()
def test_accuracy(model: nn.Module, test: TensorDataset) -> float:
    """Accuracy on the held-back images; every rank tests all of them."""
    model.eval()
    images, labels = test[:]
    return (model(images).argmax(dim=1) == labels).float().mean().item()


def weights_are_equal(model: nn.Module) -> bool:
    """Whether the weights of all ranks are bitwise equal."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return len(set(hvd.allgather_object(digest.hexdigest(), name="weights"))) == 1


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
