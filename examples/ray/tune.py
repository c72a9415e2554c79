"""Search the learning rate of a digits network with Ray Tune; every trial trains on two workers.

    python examples/ray/tune.py --rates 0.001 0.01 0.1

Uses the cluster of RAY_ADDRESS, or one that runs on this machine, or starts one for the time of the
script. Trials run in parallel as far as the cluster has room. Exits
non-zero when the best accuracy on unseen images is too low.
"""

import argparse
import sys

import ray
import torch
from ray import tune
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import horovod.torch as hvd
from horovod.ray import RayExecutor, ray_logger

WORKERS = 2


def main() -> int:
    args = parse_arguments()
    ray.init(log_to_driver=False)
    # The first bundle is for the trial's own process, which only waits; the others are for workers.
    resources = tune.PlacementGroupFactory([{}, *[{"CPU": 1}] * WORKERS])
    tuner = tune.Tuner(
        tune.with_resources(trial, resources),
        param_space={"rate": tune.grid_search(args.rates), "epochs": args.epochs},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        run_config=tune.RunConfig(storage_path=args.storage, verbose=args.verbose),
    )
    best = tuner.fit().get_best_result()
    accuracy = best.metrics["accuracy"]
    print(f"learning rate {best.config['rate']} has test accuracy {accuracy:.4f}")
    return 0 if accuracy >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.001, 0.01, 0.1])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--storage", help="folder for Tune's files; all nodes must have it")
    parser.add_argument("--verbose", type=int, default=1, help="how much Tune prints, 0 to 2")
    parser.add_argument("--min-accuracy", type=float, default=0.9)
    return parser.parse_args()


def trial(config: dict) -> None:
    """The workers use the resources of the trial that starts them."""
    executor = RayExecutor(RayExecutor.create_settings(), num_workers=WORKERS)
    executor.start()
    executor.run(train, args=[config], callbacks=[tune.report])  # Tune gets the workers' logs
    executor.shutdown()


def train(config: dict) -> None:
    """The function of every worker."""
    hvd.init()
    torch.set_num_threads(1)  # enough for 8 x 8 pixels
    torch.manual_seed(1)
    training, test = load_data()
    sampler = DistributedSampler(training, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(training, batch_size=32, sampler=sampler)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["rate"], momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for epoch in range(config["epochs"]):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if hvd.rank() == 0:
            ray_logger.log({"epoch": epoch + 1, "accuracy": accuracy_of(model, test)})


@torch.no_grad()
def accuracy_of(model: nn.Module, test: TensorDataset) -> float:
    """Accuracy on the held-back images."""
    images, labels = test[:]
    return (model(images).argmax(dim=1) == labels).float().mean().item()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """The digits as [n, 64] floats in 0..1 with labels, split the same way on every worker."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images, labels, test_size=0.25, random_state=0)
    train_x, test_x, train_y, test_y = (torch.tensor(part) for part in split)
    return TensorDataset(train_x.float() / 16, train_y), TensorDataset(test_x.float() / 16, test_y)


if __name__ == "__main__":
    sys.exit(main())
