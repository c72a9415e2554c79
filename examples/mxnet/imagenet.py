"""Train ResNet-50 with MXNet's Gluon as on ImageNet, on made-up images.

    horovodrun -np 4 python examples/mxnet/imagenet.py
    horovodrun -np 2 python examples/mxnet/imagenet.py --small --epochs 4

Warm-up and schedule are those of Goyal et al. (arXiv 1706.02677). For the real images put
``mx.io.ImageRecordIter`` in place of the made-up ones: its ``num_parts=hvd.size()`` and
``part_index=hvd.rank()`` are a rank's shard. Rank 0 saves; --resume continues from its file.
"""

import argparse
import hashlib
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon.model_zoo import vision

import horovod.mxnet as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()
    mx.random.seed(args.seed)
    device = mx.gpu(hvd.local_rank()) if mx.context.num_gpus() else mx.cpu()
    images = MadeUpImages(32, 10) if args.small else MadeUpImages(224, 1000)
    step_count = args.images // (args.batch_size * hvd.size())  # of an epoch, for every rank

    network = make_network(args.small, device)
    if args.resume and hvd.rank() == 0:
        network.load_parameters(str(args.resume), ctx=device)
    hvd.broadcast_parameters(network.collect_params(), root_rank=0)
    trainer = make_trainer(network, step_count, args)

    say(f"{hvd.size()} rank(s), {step_count} steps of {args.batch_size} images in an epoch")
    for epoch in range(args.epochs):
        loss = train_epoch(network, trainer, images, epoch, step_count, args, device)
        accuracy = validate(network, images, args, device)
        if hvd.rank() == 0:  # one writer
            network.save_parameters(str(args.checkpoint))
        say(f"epoch {epoch + 1}/{args.epochs}  loss {loss:.4f}  accuracy {accuracy:.4f}")
    equal = weights_are_equal(network)
    say(f"weights are {'bitwise equal' if equal else 'NOT EQUAL'} on all {hvd.size()} rank(s)")
    return 0 if equal else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=512, help="of an epoch, of all ranks")
    parser.add_argument("--small", action="store_true", help="tiny network, images of 32 x 32")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--base-lr", type=float, default=0.0125, help="of one rank")
    parser.add_argument("--warmup-epochs", type=int, default=5)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--checkpoint", type=Path, default=Path("resnet.params"))
    parser.add_argument("--resume", type=Path, help="weights to begin with, read by rank 0")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class MadeUpImages:
    """Images of noise over one pattern per class, which a network can learn."""

    def __init__(self, size: int, class_count: int) -> None:
        self._patterns = np.random.default_rng(0).normal(size=(class_count, 3, size, size))

    def batch(self, count: int, seed: tuple[int, ...]) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """Images [count, 3, size, size] and their classes, which depend on the seed."""
        generator = np.random.default_rng(seed)
        labels = generator.integers(len(self._patterns), size=count)
        noise = generator.normal(size=(count, *self._patterns.shape[1:]))
        return mx.nd.array(noise + self._patterns[labels]), mx.nd.array(labels)


def make_network(small: bool, device: mx.Context) -> gluon.HybridBlock:
    if small:
        network = vision.ResNetV1(
            vision.BasicBlockV1, [1, 1], [8, 8, 16], classes=10, thumbnail=True
        )
    else:
        network = vision.resnet50_v1(classes=1000)
    network.initialize(mx.init.Xavier(magnitude=2), ctx=device)
    network.hybridize(static_alloc=True)
    return network


def make_trainer(
    network: gluon.HybridBlock, step_count: int, args: argparse.Namespace
) -> hvd.DistributedTrainer:
    """SGD whose rate rises to that of all ranks, then falls by 10 after 30, 60 and 80 epochs."""
    schedule = mx.lr_scheduler.MultiFactorScheduler(
        step=[epoch * step_count for epoch in (30, 60, 80)],
        factor=0.1,
        base_lr=args.base_lr * hvd.size(),
        warmup_steps=args.warmup_epochs * step_count,
        warmup_begin_lr=args.base_lr,
    )
    options = {"momentum": args.momentum, "wd": args.weight_decay, "lr_scheduler": schedule}
    return hvd.DistributedTrainer(
        network.collect_params(),
        "sgd",
        options,
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    )


def train_epoch(network, trainer, images, epoch, step_count, args, device) -> float:
    """One pass over this rank's shard; the mean loss over all ranks."""
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for step in range(step_count):
        inputs, labels = images.batch(args.batch_size, (args.seed, epoch, step, hvd.rank()))
        with autograd.record():
            loss = loss_of(network(inputs.as_in_context(device)), labels.as_in_context(device))
        loss.backward()
        trainer.step(args.batch_size)
        losses.append(loss.mean())
    return float(hvd.allreduce(mx.nd.add_n(*losses) / step_count, name="loss").asscalar())


def validate(network, images, args, device) -> float:
    """The accuracy on new images; all ranks test equally many."""
    inputs, labels = images.batch(args.batch_size, (args.seed + 1, hvd.rank()))
    answers = network(inputs.as_in_context(device)).argmax(axis=1)
    share = (answers == labels.as_in_context(device)).mean()
    return float(hvd.allreduce(share, name="accuracy").asscalar())


def weights_are_equal(network: gluon.HybridBlock) -> bool:
    """Whether the weights of all ranks are bitwise equal, except batch normalisation."""
    weights = [
        parameter.data().asnumpy().tobytes()
        for parameter in network.collect_params().values()
        if parameter.grad_req != "null"
    ]
    digest = hashlib.sha256(b"".join(weights)).hexdigest()
    return len(set(hvd.allgather_object(digest))) == 1


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
