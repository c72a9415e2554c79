"""Mixed precision, gradient accumulation and gradient clipping together.

    horovodrun -np 2 python examples/pytorch/amp_accumulation.py
    horovodrun -np 2 python examples/pytorch/amp_accumulation.py --dtype float16

The order matters: the gradients of several backward passes are summed, averaged over the ranks
(``synchronize``), unscaled and clipped, and only then applied (``step`` inside
``skip_synchronize``). Clipping before averaging would clip every rank's gradient by another factor.
Exits non-zero when the accuracy is too low or the weights differ.
"""

import argparse
import sys
from collections.abc import Iterator

import torch
from digits import build_model, load_data, say, test_accuracy, weights_are_equal
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, DistributedSampler, Subset

import horovod.torch as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed + hvd.rank())

    train, test = load_data()
    train = Subset(train, range(args.images or len(train)))
    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler)
    model = build_model()
    rate = args.lr * hvd.size() * args.accumulate  # batches per step
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=args.accumulate,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    # float16 gradients would vanish unscaled; bfloat16 has the range of float32 and needs no scale.
    scaler = torch.amp.GradScaler("cpu", enabled=args.dtype == "float16")

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, scaler, args)
        say(f"epoch {epoch + 1:2d}/{args.epochs}  loss {loss:.4f}  scale {scaler.get_scale():g}")

    accuracy, equal = test_accuracy(model, test), weights_are_equal(model)
    say(f"test accuracy {accuracy:.4f}")
    say(f"weights are {'bitwise equal' if equal else 'NOT EQUAL'} on all {hvd.size()} rank(s)")
    if accuracy < args.min_accuracy:
        say(f"accuracy is below {args.min_accuracy}")
    return 0 if equal and accuracy >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank and pass")
    parser.add_argument("--accumulate", type=int, default=2, help="backward passes per step")
    parser.add_argument("--max-norm", type=float, default=1.0, help="of the averaged gradient")
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float16"),
        default="bfloat16",
        help="of the fast part; float16 is slow on most CPUs",
    )
    parser.add_argument("--images", type=int, help="train on so many only")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one batch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--min-accuracy", type=float, default=0.95)
    return parser.parse_args()


def train_epoch(
    model: nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    args: argparse.Namespace,
) -> float:
    """One pass over this rank's shard; the mean loss over all ranks."""
    model.train()
    total = torch.zeros(())
    for batches in chunks(loader, args.accumulate):
        for images, labels in batches:
            with torch.autocast("cpu", dtype=getattr(torch, args.dtype)):
                loss = F.cross_entropy(model(images), labels)
            scaler.scale(loss / len(batches)).backward()
            total += loss.detach()
        optimizer.synchronize()  # average over ranks ...
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
        with optimizer.skip_synchronize():  # ... and do not average again
            scaler.step(optimizer)  # all ranks skip it, or none: they see the same gradient
        scaler.update()
        optimizer.zero_grad()
    return hvd.allreduce(total / len(loader), name="loss").item()


def chunks(loader: DataLoader, length: int) -> Iterator[list]:
    """The batches in lists of ``length``; the last list may be shorter."""
    chunk = []
    for batch in loader:
        chunk.append(batch)
        if len(chunk) == length:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


if __name__ == "__main__":
    sys.exit(main())
