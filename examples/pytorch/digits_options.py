"""The digits again, with every option of DistributedOptimizer on the command line.

    horovodrun -np 2 python examples/pytorch/digits_options.py --op Adasum
    horovodrun -np 2 python examples/pytorch/digits_options.py --compression fp16 --groups 2
    horovodrun -np 4 python examples/pytorch/digits_options.py --teams 2
    horovodrun -np 2 python examples/pytorch/digits_options.py --sparse-embedding --sparse-as-dense

With ``--teams`` the ranks form process sets that train a model each, apart from one another; the
answers of all models are averaged at the end. Exits non-zero when the accuracy is too low or the
weights differ inside a team.
"""

import argparse
import sys

import torch
from digits import build_model, load_data, say, weights_digest
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import horovod.torch as hvd

OPS = {"Average": hvd.Average, "Sum": hvd.Sum, "Adasum": hvd.Adasum}
COMPRESSIONS = {
    "none": hvd.Compression.none,
    "fp16": hvd.Compression.fp16,
    "bf16": hvd.Compression.bf16,
    "powersgd": hvd.Compression.powersgd(rank=4),
}


def main() -> int:
    args = parse_arguments()
    team = join_team(args.teams)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed + hvd.rank())

    train, test = load_data()
    sampler = DistributedSampler(train, num_replicas=team.size(), rank=team.rank())
    loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler)
    model = nn.Sequential(Brightness(), build_model(8)) if args.sparse_embedding else build_model()
    hvd.broadcast_parameters(model.state_dict(), root_rank=team.ranks[0], process_set=team)
    optimizer = wrap_optimizer(model, args, team)

    say(f"training {args.teams} model(s) on {team.size()} rank(s) each")
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, args.backward_passes, team)
        say(f"epoch {epoch + 1:2d}/{args.epochs}  loss {loss:.4f}")
    accuracy = test_accuracy(model, test)
    model_count = len(set(hvd.allgather_object(weights_digest(model), name="weights")))
    say(f"test accuracy {accuracy:.4f}, {model_count} different model(s)")
    if accuracy < args.min_accuracy:
        say(f"accuracy is below {args.min_accuracy}")
    return 0 if accuracy >= args.min_accuracy and model_count == args.teams else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and pass")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--min-accuracy", type=float, default=0.95)
    parser.add_argument(
        "--op", choices=OPS, default="Average", help="how the ranks' gradients become one"
    )
    parser.add_argument(
        "--compression",
        choices=COMPRESSIONS,
        default="none",
        help="what travels: halves, or two thin matrices per gradient",
    )
    parser.add_argument(
        "--groups", type=int, default=0, help="reduce the gradients in so many groups; 0: freely"
    )
    parser.add_argument(
        "--backward-passes", type=int, default=1, help="gradients added up before each reduction"
    )
    parser.add_argument(
        "--predivide-factor",
        type=float,
        default=1.0,
        help="divide gradients by it before they are summed, and by size/it afterwards",
    )
    parser.add_argument("--teams", type=int, default=1, help="process sets with a model each")
    parser.add_argument(
        "--sparse-embedding", action="store_true", help="a first layer with sparse gradients"
    )
    parser.add_argument(
        "--sparse-as-dense", action="store_true", help="reduce sparse gradients as dense tensors"
    )
    return parser.parse_args()


def join_team(team_count: int) -> hvd.ProcessSet:
    """Join the other ranks; ranks 0, n, 2n, ... are the first of n teams. This rank's team."""
    if team_count == 1:
        hvd.init()
        return hvd.global_process_set
    # Process sets are known to all ranks, but the number of ranks only after init: hence dynamic.
    hvd.init(process_sets="dynamic")
    if hvd.size() < team_count:
        raise SystemExit(f"{team_count} teams need as many ranks; there are {hvd.size()}")
    ranks_of_teams = [list(range(first, hvd.size(), team_count)) for first in range(team_count)]
    teams = [hvd.add_process_set(ranks) for ranks in ranks_of_teams]  # on every rank, in order
    return teams[hvd.rank() % team_count]


class Brightness(nn.Module):
    """Looks the 17 shades of [n, 1, 8, 8] pixels up in a learned table: [n, 8, 8, 8].

    Its gradient is sparse: it has rows for the shades that occur in the batch only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(17, 8, sparse=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        shades = (images.squeeze(1) * 16).long()
        return self.table(shades).permute(0, 3, 1, 2)


def wrap_optimizer(
    model: nn.Module, args: argparse.Namespace, team: hvd.ProcessSet
) -> torch.optim.Optimizer:
    # A step uses size * passes batches. Average makes their gradient that of one batch, so the
    # rate has to grow with them; Sum adds up over ranks by itself; Adasum needs no larger rate.
    rate_scale = args.backward_passes * (team.size() if args.op == "Average" else 1)
    return hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=args.lr * rate_scale, momentum=0.9),
        named_parameters=model.named_parameters(),
        op=OPS[args.op],
        compression=COMPRESSIONS[args.compression],
        groups=args.groups,
        backward_passes_per_step=args.backward_passes,
        gradient_predivide_factor=args.predivide_factor,
        sparse_as_dense=args.sparse_as_dense,
        process_set=team,
    )


def train_epoch(
    model: nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    backward_passes: int,
    team: hvd.ProcessSet,
) -> float:
    """One pass over this rank's shard; the mean loss over the team."""
    model.train()
    total = torch.zeros(())
    for index, (images, labels) in enumerate(loader, start=1):
        loss = F.cross_entropy(model(images), labels)
        (loss / backward_passes).backward()  # passes are added up: this makes it their mean
        if index % backward_passes == 0 or index == len(loader):
            optimizer.step()
            optimizer.zero_grad()
        total += loss.detach()
    return hvd.allreduce(total / len(loader), name="loss", process_set=team).item()


@torch.no_grad()
def test_accuracy(model: nn.Module, test: TensorDataset) -> float:
    """Share of the held-back images read right by the mean of all teams' answers."""
    model.eval()
    images, labels = test[:]
    answers = hvd.allreduce(model(images).softmax(dim=1), name="answers")  # over all ranks
    return (answers.argmax(dim=1) == labels).float().mean().item()


if __name__ == "__main__":
    sys.exit(main())
