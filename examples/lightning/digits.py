"""Learn to read handwritten digits with Lightning's Trainer on any number of ranks.

    horovodrun -np 2 python examples/lightning/digits.py

The module is the same as for a single process; ``HorovodStrategy`` gives every rank its shard of
the images, averages the gradients and starts from rank 0's weights. Exits non-zero when the
accuracy on unseen images is too low or the ranks' weights differ.
"""

import argparse
import hashlib
import sys

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd
from horovod.lightning import HorovodStrategy


class Digits(LightningModule):
    """Only the step size depends on the number of ranks."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.network(images), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)  # of all ranks
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        images, labels = batch
        is_right = self.network(images).argmax(dim=1) == labels
        self.log("accuracy", is_right.float().mean(), sync_dist=True)

    def on_train_epoch_end(self) -> None:
        loss = self.trainer.callback_metrics["loss"]
        say(f"epoch {self.current_epoch + 1}/{self.trainer.max_epochs}  loss {loss:.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.rate * hvd.size(), momentum=0.9)


def main() -> int:
    args = parse_arguments()
    strategy = HorovodStrategy()  # joins the other ranks
    torch.set_num_threads(1)  # enough for 8 x 8 pixels
    seed_everything(args.seed, verbose=False)
    train, test = load_data()
    model = Digits(args.lr)
    trainer = Trainer(
        strategy=strategy,
        accelerator="auto",
        devices="auto",  # each rank takes the one with its local rank
        max_epochs=args.epochs,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    say(f"training on {hvd.size()} rank(s), {len(train)} images, {len(test)} held back")
    trainer.fit(
        model,
        DataLoader(train, batch_size=args.batch_size, shuffle=True),  # Lightning shards it
        DataLoader(test, batch_size=len(test)),
    )
    accuracy = float(trainer.callback_metrics["accuracy"])
    equal = len(set(hvd.allgather_object(weights_digest(model)))) == 1
    say(f"test accuracy {accuracy:.4f}")
    say(f"weights are {'bitwise equal' if equal else 'NOT EQUAL'} on all {hvd.size()} rank(s)")
    return 0 if equal and accuracy >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--min-accuracy", type=float, default=0.9)
    return parser.parse_args()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """The digits as [n, 64] floats in 0..1 with labels, split the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16, labels, test_size=0.25, random_state=0)
    train_x, test_x, train_y, test_y = (torch.tensor(part) for part in split)
    return TensorDataset(train_x.float(), train_y), TensorDataset(test_x.float(), test_y)


def weights_digest(model: nn.Module) -> str:
    """A hash of every bit of every parameter."""
    data = b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values())
    return hashlib.sha256(data).hexdigest()


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
