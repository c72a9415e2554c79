"""Images per second of a training on N ranks: ResNet-50 on made-up images.

    horovodrun -np 1 python examples/pytorch/synthetic_benchmark.py
    horovodrun -np 2 python examples/pytorch/synthetic_benchmark.py
    horovodrun -np 2 python examples/pytorch/synthetic_benchmark.py --small

The total of N ranks divided by N times that of one rank is the scaling efficiency. On one machine
compare with equal threads per rank (``--threads``): the ranks share its cores.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

import torch
from resnet import resnet50, tiny_resnet
from torch import nn
from torch.nn import functional as F  # noqa: N812

import horovod.torch as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(args.threads or max(1, (os.cpu_count() or 1) // hvd.local_size()))
    device = pick_device(args.no_cuda)
    torch.manual_seed(args.seed)

    model = (tiny_resnet(10) if args.small else resnet50()).to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    step = training_step(model, optimizer, args.batch_size, args.image_size, device)

    say(describe(model, args, device))
    for _ in range(args.warmup_batches):
        step()
    speeds = []
    for iteration in range(args.iterations):
        speeds.append(images_per_s(step, args.batches_per_iteration, args.batch_size))
        say(f"iteration {iteration + 1:2d}/{args.iterations}  {speeds[-1]:.1f} img/s per rank")
    report(torch.tensor(speeds))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--image-size", type=int, help="pixels; default 224, or 32 with --small")
    parser.add_argument("--warmup-batches", type=int, default=10, help="not measured")
    parser.add_argument("--iterations", type=int, default=10, help="figures to average")
    parser.add_argument("--batches-per-iteration", type=int, default=10)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--small", action="store_true", help="a tiny network, for a quick test")
    parser.add_argument("--no-cuda", action="store_true", help="use the CPU even if there is a GPU")
    parser.add_argument(
        "--threads", type=int, help="of torch per rank; default: its share of cores"
    )
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.image_size = args.image_size or (32 if args.small else 224)
    return args


def pick_device(no_cuda: bool) -> torch.device:
    """This rank's GPU, one per local rank, or the CPU."""
    if no_cuda or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch_size: int,
    image_size: int,
    device: torch.device,
) -> Callable[[], None]:
    """A function that trains on one batch of random images."""
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    labels = torch.randint(10, (batch_size,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def images_per_s(step: Callable[[], None], batch_count: int, batch_size: int) -> float:
    """Images per second of this rank; other ranks are as fast, because every step waits for all."""
    start = time.perf_counter()
    for _ in range(batch_count):
        step()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return batch_count * batch_size / (time.perf_counter() - start)


def describe(model: nn.Module, args: argparse.Namespace, device: torch.device) -> str:
    parameters = list(model.parameters())
    element_count = sum(parameter.numel() for parameter in parameters)
    return (
        f"{hvd.size()} rank(s) on {device.type}, {element_count:,} weights in {len(parameters)} "
        f"tensors, batches of {args.batch_size} images of {args.image_size} x {args.image_size}"
    )


def report(speeds: torch.Tensor) -> None:
    """Print the mean over iterations of one rank and of all, with two standard deviations."""
    mean_of_ranks = hvd.allreduce(speeds, name="speeds")
    deviation, mean = torch.std_mean(mean_of_ranks, correction=0)
    say(f"per rank:   {mean:.1f} +- {2 * deviation:.1f} img/s")
    say(f"{hvd.size()} rank(s):  {hvd.size() * mean:.1f} +- {2 * hvd.size() * deviation:.1f} img/s")


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
