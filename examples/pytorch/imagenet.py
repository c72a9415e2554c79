"""Train ResNet-50 as one trains on ImageNet: warm-up, schedule, checkpoints, resume.

    horovodrun -np 4 python examples/pytorch/imagenet.py --data /data/imagenet   # train/, val/
    horovodrun -np 2 python examples/pytorch/imagenet.py --synthetic --small --epochs 4

A folder has ``train`` and ``val`` with one folder of images per class; reading it needs
torchvision. Run the same command again after an interruption: it goes on after the last epoch that
was saved. Warm-up and schedule are those of Goyal et al. (arXiv 1706.02677).
"""

import argparse
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
from resnet import resnet50, tiny_resnet
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

import horovod.torch as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(args.threads or max(1, (os.cpu_count() or 1) // hvd.local_size()))
    device = pick_device()
    torch.manual_seed(args.seed)

    train, val, class_count = synthetic_data(args) if args.synthetic else folder_data(args)
    train_loader, val_loader = make_loaders(train, val, args)
    model = (tiny_resnet if args.small else resnet50)(class_count).to(device)
    optimizer = make_optimizer(model, args)
    first_epoch = start_or_resume(model, optimizer, args.checkpoint)

    say(f"{hvd.size()} rank(s), {len(train)} images, {len(val)} to validate")
    for epoch in range(first_epoch, args.epochs):
        loss = train_epoch(model, train_loader, optimizer, epoch, args)
        average_statistics(model)
        accuracy = validate(model, val_loader)
        if hvd.rank() == 0:  # one writer: ranks that write one file at a time would destroy it
            save_checkpoint(args.checkpoint, epoch + 1, model, optimizer)
        say(
            f"epoch {epoch + 1}/{args.epochs}  loss {loss:.4f}  accuracy {accuracy:.4f}  "
            f"weights {weights_digest(model)}"
        )
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="folder with train/CLASS/* and val/CLASS/*")
    source.add_argument("--synthetic", action="store_true", help="made-up images")
    parser.add_argument("--synthetic-images", type=int, default=512, help="how many to make up")
    parser.add_argument("--small", action="store_true", help="tiny network, images of 32 x 32")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and pass")
    parser.add_argument(
        "--batches-per-step", type=int, default=1, help="add up gradients of so many batches"
    )
    parser.add_argument("--base-lr", type=float, default=0.0125, help="for one batch per step")
    parser.add_argument("--warmup-epochs", type=float, default=5)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--workers", type=int, default=0, help="processes per rank to load images")
    parser.add_argument(
        "--threads", type=int, help="of torch per rank; default: its share of cores"
    )
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def pick_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)  # one GPU per rank, also for what torch does by itself
    return device


class SyntheticImages(Dataset):
    """Images of noise over one pattern per class, which a network can learn."""

    def __init__(self, count: int, size: int, class_count: int, seed: int) -> None:
        self._count, self._size, self._seed = count, size, seed
        patterns = torch.Generator().manual_seed(0)
        self._patterns = torch.randn(class_count, 3, size, size, generator=patterns)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % len(self._patterns)
        generator = torch.Generator().manual_seed(self._seed + index)
        noise = torch.randn(3, self._size, self._size, generator=generator)
        return noise + self._patterns[label], label


def synthetic_data(args: argparse.Namespace) -> tuple[Dataset, Dataset, int]:
    """Images to train on, images to validate on, number of classes."""
    size, class_count = (32, 10) if args.small else (224, 1000)
    train = SyntheticImages(args.synthetic_images, size, class_count, seed=10**6)
    val = SyntheticImages(args.synthetic_images // 4, size, class_count, seed=2 * 10**6)
    return train, val, class_count


def folder_data(args: argparse.Namespace) -> tuple[Dataset, Dataset, int]:
    """The same of real images."""
    from torchvision import datasets, transforms  # only a folder of images needs it

    size, margin_size = (32, 36) if args.small else (224, 256)
    to_tensor = [
        transforms.ToTensor(),
        transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    ]
    augment = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
    centre = [transforms.Resize(margin_size), transforms.CenterCrop(size)]
    train = datasets.ImageFolder(args.data / "train", transforms.Compose(augment + to_tensor))
    val = datasets.ImageFolder(args.data / "val", transforms.Compose(centre + to_tensor))
    return train, val, len(train.classes)


def make_loaders(
    train: Dataset, val: Dataset, args: argparse.Namespace
) -> tuple[DataLoader, DataLoader]:
    """Every rank's share: of the training images another one in every epoch."""
    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed)
    # A sampler would pad the last share with copies, which validation would count twice.
    own_val = Subset(val, range(hvd.rank(), len(val), hvd.size()))
    options: dict[str, Any] = {
        "batch_size": args.batch_size,
        "num_workers": args.workers,
        # Workers from a clean server process inherit neither threads nor CUDA, as forked ones do.
        "multiprocessing_context": "forkserver" if args.workers else None,
        "persistent_workers": args.workers > 0,
        "pin_memory": torch.cuda.is_available(),
    }
    return DataLoader(train, sampler=sampler, **options), DataLoader(own_val, **options)


def make_optimizer(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    """SGD with momentum; batch normalisation and biases are not decayed."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.SGD(
        [
            {"params": decayed, "weight_decay": args.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=args.base_lr,  # the schedule sets it before every step
        momentum=args.momentum,
    )
    return hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=args.batches_per_step,
    )


def start_or_resume(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> int:
    """Give all ranks rank 0's state, out of the checkpoint if there is one; the epoch to begin.

    Only rank 0 reads, so the file need not exist on other machines, and whatever they might see
    there cannot make the ranks begin differently.
    """
    first_epoch = 0
    if hvd.rank() == 0 and path.exists():
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        first_epoch = checkpoint["epoch"]
    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0, name="first_epoch")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    if first_epoch > 0:
        say(f"resuming after epoch {first_epoch}")
    return first_epoch


def save_checkpoint(
    path: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Write beside ``path``, then rename: whenever the job dies, ``path`` is whole."""
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    unfinished = path.with_name(path.name + ".unfinished")
    torch.save(state, unfinished)
    os.replace(unfinished, path)


def learning_rate(epoch: float, args: argparse.Namespace) -> float:
    """The rate at ``epoch``, which grows with every batch.

    A step of n batches takes n times the rate of one batch. Starting with it right away often
    diverges, so it is reached gradually. Then it falls by 10 after 1/3, 2/3 and 8/9 of 90 epochs.
    """
    scale = hvd.size() * args.batches_per_step
    if epoch < args.warmup_epochs:
        return args.base_lr * (1 + (scale - 1) * epoch / args.warmup_epochs)
    return args.base_lr * scale * 0.1 ** sum(epoch >= milestone for milestone in (30, 60, 80))


def train_epoch(
    model: nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    args: argparse.Namespace,
) -> float:
    """One pass over this rank's shard; the mean loss over all ranks."""
    loader.sampler.set_epoch(epoch)  # without it every epoch has the order of the first
    model.train()
    device = next(model.parameters()).device
    total = torch.zeros((), device=device)
    for index, (images, labels) in enumerate(loader):
        scores = model(images.to(device, non_blocking=True))
        labels = labels.to(device, non_blocking=True)
        loss = F.cross_entropy(scores, labels, label_smoothing=args.label_smoothing)
        (loss / args.batches_per_step).backward()  # gradients add up: this makes it their mean
        total += loss.detach()
        if (index + 1) % args.batches_per_step == 0 or index + 1 == len(loader):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(epoch + index / len(loader), args)
            optimizer.step()
            optimizer.zero_grad()
    return hvd.allreduce(total / len(loader), name="loss").item()


def average_statistics(model: nn.Module) -> None:
    """Average what batch normalisation has seen: every rank validates, and rank 0 saves, the same.

    These are buffers, not parameters, so the optimizer does not take care of them.
    """
    statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    hvd.grouped_allreduce_(statistics, name="statistics")


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader) -> float:
    """The share of all validation images read right, each counted once."""
    model.eval()
    device = next(model.parameters()).device
    counts = torch.zeros(2, dtype=torch.int64)  # right, all
    for images, labels in loader:
        best = model(images.to(device)).argmax(dim=1).cpu()
        counts += torch.tensor([(best == labels).sum().item(), len(labels)])
    # Sums, not the mean of the ranks' shares: those may have unequal numbers of images.
    right, all_images = hvd.allreduce(counts, op=hvd.Sum, name="validation").tolist()
    return right / all_images


def weights_digest(model: nn.Module) -> str:
    """Eight letters that change when a bit of the weights does."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:8]


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
