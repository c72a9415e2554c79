"""Train over a slow network: ranks step alone, and agree on parameters every 20 steps.

    horovodrun -np 2 python examples/pytorch/local_steps.py

DiLoCo: the inner optimizer is AdamW, the outer one SGD with Nesterov momentum. With --overlap a
rank goes on while parameters are on their way. Exits non-zero when the accuracy is too low or the
weights differ at the end.
"""

import argparse
import sys

import torch
from digits import build_model, load_data, say, test_accuracy, train_epoch, weights_are_equal
from torch.utils.data import DataLoader, DistributedSampler

import horovod.torch as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed + hvd.rank())

    train, test = load_data()
    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler)
    model = build_model()
    optimizer = hvd.DiLoCo(
        torch.optim.AdamW(model.parameters(), lr=args.lr),  # not multiplied by the ranks
        sync_every=args.sync_every,
        outer_lr=args.outer_lr,
        fragments=args.fragments,
        overlap=args.overlap,
        compression=hvd.Compression.bf16 if args.bf16 else hvd.Compression.none,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    before = hvd.metrics()["allreduce_bytes"]
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer)
        with optimizer.agreed_parameters():  # the same on all ranks; each goes on from its own
            accuracy = test_accuracy(model, test)
        say(f"epoch {epoch + 1:2d}/{args.epochs}  loss {loss:.4f}  accuracy {accuracy:.4f}")
    optimizer.finish()

    sent = hvd.metrics()["allreduce_bytes"] - before
    gradients = sum(4 * param.numel() for param in model.parameters())
    share = sent / (gradients * len(loader) * args.epochs)
    say(f"sent {100 * share:.1f} % of the bytes of all gradients")
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
    parser.add_argument("--lr", type=float, default=0.002, help="of the inner steps")
    parser.add_argument("--sync-every", type=int, default=20, help="steps between agreements")
    parser.add_argument("--outer-lr", type=float, default=0.7)
    parser.add_argument("--fragments", type=int, default=1, help="parts that are sent in turn")
    parser.add_argument("--overlap", type=int, default=0, help="steps while a part is sent")
    parser.add_argument("--bf16", action="store_true", help="send half of the bytes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--min-accuracy", type=float, default=0.95)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
