"""Learn to read handwritten digits on workers that come and go with the nodes of a Ray cluster.

    python examples/ray/elastic.py --min-workers 1 --max-workers 4 --pause 0.1

Uses the cluster of RAY_ADDRESS, or one that runs on this machine, or starts one for the time of the
script. Add nodes, or kill an actor (``ray list actors``) or a node: the
other workers go on. Exits non-zero when the accuracy on unseen images is too low.
"""

import argparse
import sys
import time

import ray
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd
from horovod.ray import RayExecutor, ray_logger


def main() -> int:
    args = parse_arguments()
    ray.init()
    executor = RayExecutor(
        RayExecutor.create_settings(),
        min_workers=args.min_workers,
        max_workers=args.max_workers,
        cooldown_range=(1, 60),  # use a node again after a worker failed there
    )
    executor.start()
    accuracies = executor.run(train, args=[args], callbacks=[show])
    executor.shutdown()
    print(f"test accuracy {accuracies[0]:.4f} on {len(accuracies)} worker(s)")
    return 0 if accuracies[0] >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--min-workers", type=int, default=1)
    parser.add_argument("--max-workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one worker")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step")
    parser.add_argument("--min-accuracy", type=float, default=0.95)
    return parser.parse_args()


def show(news: dict) -> None:
    """Called in the script for each dictionary that a worker logs."""
    print("epoch {epoch:2d}  {workers} worker(s)  loss {loss:.4f}".format(**news), flush=True)


def train(args: argparse.Namespace) -> float:
    """The function of every worker, also of later ones."""
    hvd.init()
    torch.set_num_threads(1)  # enough for 8 x 8 pixels
    training, test = load_data()
    sampler = hvd.elastic.ElasticSampler(training)
    loader = DataLoader(training, batch_size=args.batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    # All that a worker needs to continue, or to start in the middle.
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)
    state.register_reset_callbacks([lambda: scale_learning_rate(optimizer, args.lr)])
    train_epochs(state, loader, args)
    images, labels = test[:]
    with torch.no_grad():
        return (model(images).argmax(dim=1) == labels).float().mean().item()


@hvd.elastic.run  # it is called again after each change of the workers
def train_epochs(
    state: hvd.elastic.TorchState, loader: DataLoader, args: argparse.Namespace
) -> None:
    while state.epoch < args.epochs:
        loss = torch.zeros(())
        for images, labels in loader:
            state.optimizer.zero_grad()
            loss = F.cross_entropy(state.model(images), labels)
            loss.backward()
            state.optimizer.step()
            state.sampler.record_batch(state.batch, len(images))  # these images are done
            state.batch += 1
            if state.batch % 5 == 0:
                state.commit()  # the point to which a failure goes back
            time.sleep(args.pause)
        mean = hvd.allreduce(loss.detach(), name="loss").item()
        if hvd.rank() == 0:
            ray_logger.log({"epoch": state.epoch + 1, "workers": hvd.size(), "loss": mean})
        state.epoch, state.batch = state.epoch + 1, 0
        state.sampler.set_epoch(state.epoch)  # a new epoch: no image is done
        state.commit()


def scale_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Scale the rate by the number of workers: a step uses the images of all workers."""
    for group in optimizer.param_groups:
        group["lr"] = rate * hvd.size()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """The digits as [n, 64] floats in 0..1 with labels, split the same way on every worker."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images, labels, test_size=0.25, random_state=0)
    train_x, test_x, train_y, test_y = (torch.tensor(part) for part in split)
    return TensorDataset(train_x.float() / 16, train_y), TensorDataset(test_x.float() / 16, test_y)


if __name__ == "__main__":
    sys.exit(main())
