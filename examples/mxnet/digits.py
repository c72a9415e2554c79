"""Learn to read handwritten digits on any number of ranks, with MXNet's Gluon.

    horovodrun -np 2 python examples/mxnet/digits.py

Every rank trains on its own shard of the 1797 images that ship with scikit-learn; the gradients
are averaged while backward goes on. The numbered lines are Horovod's additions to a script.
Exits non-zero when the accuracy on unseen images is too low or the ranks' weights differ.
"""

import argparse
import hashlib
import sys
import time

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.mxnet as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()  # 1: join the other ranks
    mx.random.seed(args.seed + hvd.rank())  # weights differ; 3 makes them equal
    (images, labels), test = load_data()

    network = make_network()
    trainer = hvd.DistributedTrainer(  # 2: average the gradients of all ranks
        network.collect_params(), "sgd", {"learning_rate": args.lr * hvd.size(), "momentum": 0.9}
    )
    hvd.broadcast_parameters(network.collect_params(), root_rank=0)  # 3: start from rank 0's

    say(f"training on {hvd.size()} rank(s), {len(images)} images, {len(test[0])} held back")
    start = time.perf_counter()
    for epoch in range(args.epochs):
        losses = []
        for batch in batches_of(len(images), args.batch_size, args.seed + epoch):
            losses.append(train_step(network, trainer, images[batch], labels[batch]))
        loss = hvd.allreduce(mx.nd.concat(*losses, dim=0).mean(), name="loss").asscalar()
        say(f"epoch {epoch + 1:2d}/{args.epochs}  loss {loss:.4f}")
    samples_per_s = args.epochs * len(images) / (time.perf_counter() - start)

    accuracy = test_accuracy(network, *test)
    equal = weights_are_equal(network)
    say(f"test accuracy {accuracy:.4f}  ({samples_per_s:.0f} samples/s over all ranks)")
    say(f"weights are {'bitwise equal' if equal else 'NOT EQUAL'} on all {hvd.size()} rank(s)")
    if accuracy < args.min_accuracy:
        say(f"accuracy is below {args.min_accuracy}")
    return 0 if equal and accuracy >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--min-accuracy", type=float, default=0.96)
    return parser.parse_args()


def load_data() -> list[tuple[np.ndarray, np.ndarray]]:
    """The digits as [n, 64] floats in 0..1 with labels, split the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(
        images.astype("float32") / 16, labels.astype("int32"), test_size=0.25, random_state=0
    )
    train_x, test_x, train_y, test_y = split
    return [(train_x, train_y), (test_x, test_y)]


def batches_of(count: int, batch_size: int, seed: int):
    """This rank's part of an order that is equal on all ranks; equally many batches per rank."""
    order = np.random.default_rng(seed).permutation(count)
    joint = batch_size * hvd.size()
    for begin in range(0, count - joint + 1, joint):
        yield order[begin : begin + joint][hvd.rank() :: hvd.size()]  # 4: shard the data


def make_network() -> nn.HybridSequential:
    network = nn.HybridSequential()
    network.add(nn.Dense(256, activation="relu"), nn.Dense(10))
    network.initialize(mx.init.Xavier())
    network.hybridize()
    return network


def train_step(network, trainer, images: np.ndarray, labels: np.ndarray) -> mx.nd.NDArray:
    """One step; MXNet computes the losses of the batch when they are read."""
    with autograd.record():
        logits = network(mx.nd.array(images))
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(logits, mx.nd.array(labels))
    loss.backward()
    trainer.step(len(images))
    return loss


def test_accuracy(network, images: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy on the held-back images; every rank tests each ``size``-th image."""
    own = slice(hvd.rank(), None, hvd.size())
    answers = network(mx.nd.array(images[own])).argmax(axis=1)
    correct = (answers == mx.nd.array(labels[own])).sum()
    return float(hvd.allreduce(correct, op=hvd.Sum, name="correct").asscalar()) / len(images)


def weights_are_equal(network) -> bool:
    """Whether the weights of all ranks are bitwise equal."""
    weights = [p.data().asnumpy().tobytes() for p in network.collect_params().values()]
    digest = hashlib.sha256(b"".join(weights)).hexdigest()
    return len(set(hvd.allgather_object(digest))) == 1


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
