"""Learn to read handwritten digits on any number of ranks, with a network of flax (NNX).

    horovodrun -np 2 python examples/jax/flax_digits.py

A small convolutional network with batch normalisation and dropout. The gradients are averaged
inside the compiled step; the running statistics, which every rank gathers from its own images,
before the network is tested. The numbered lines are Horovod's additions to a script. Needs flax
0.11 or newer. Exits non-zero when the accuracy on unseen images is too low or ranks differ.
"""

import argparse
import hashlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.jax as hvd


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(1, 16, kernel_size=(3, 3), strides=2, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.hidden = nnx.Linear(4 * 4 * 16, 64, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        features = nnx.relu(self.norm(self.conv(images)))
        hidden = nnx.relu(self.hidden(features.reshape(len(images), -1)))
        return self.out(self.dropout(hidden))


def main() -> int:
    args = parse_arguments()
    hvd.init()  # 1: join the other ranks
    (images, labels), test = load_data()

    # Ranks start with different weights; 3 makes them equal. Dropout still differs.
    model = Network(nnx.Rngs(params=args.seed + hvd.rank(), dropout=args.seed + 100 + hvd.rank()))
    optimizer = nnx.Optimizer(
        model,
        hvd.DistributedOptimizer(optax.adam(args.lr)),  # 2: average the gradients of all ranks
        wrt=nnx.Param,
    )
    nnx.update(model, hvd.broadcast_parameters(nnx.state(model, nnx.Param)))  # 3: rank 0's weights

    say(f"training on {hvd.size()} rank(s), {len(images)} images, {len(test[0])} held back")
    start = time.perf_counter()
    for epoch in range(args.epochs):
        losses = [
            train_step(model, optimizer, images[batch], labels[batch])
            for batch in batches_of(len(images), args.batch_size, args.seed + epoch)
        ]
        loss = hvd.allreduce(jnp.mean(jnp.stack(losses)), name="loss")
        say(f"epoch {epoch + 1:2d}/{args.epochs}  loss {loss:.4f}")
    samples_per_s = args.epochs * len(images) / (time.perf_counter() - start)

    # 5: average the statistics of the ranks' different images
    nnx.update(model, hvd.allreduce(nnx.state(model, nnx.BatchStat), name="statistics"))
    accuracy = test_accuracy(model, *test)
    equal = ranks_are_equal(model)
    say(f"test accuracy {accuracy:.4f}  ({samples_per_s:.0f} samples/s over all ranks)")
    say(f"networks are {'bitwise equal' if equal else 'NOT EQUAL'} on all {hvd.size()} rank(s)")
    if accuracy < args.min_accuracy:
        say(f"accuracy is below {args.min_accuracy}")
    return 0 if equal and accuracy >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate of Adam")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--min-accuracy", type=float, default=0.96)
    return parser.parse_args()


def load_data() -> list[tuple[np.ndarray, np.ndarray]]:
    """The digits as [n, 8, 8, 1] floats in 0..1 with labels, split the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    images = images.astype("float32").reshape(-1, 8, 8, 1) / 16
    split = train_test_split(images, labels.astype("int32"), test_size=0.25, random_state=0)
    train_x, test_x, train_y, test_y = split
    return [(train_x, train_y), (test_x, test_y)]


def batches_of(count: int, batch_size: int, seed: int):
    """This rank's part of an order that is equal on all ranks; equally many batches per rank."""
    order = np.random.default_rng(seed).permutation(count)
    joint = batch_size * hvd.size()
    for begin in range(0, count - joint + 1, joint):
        yield order[begin : begin + joint][hvd.rank() :: hvd.size()]  # 4: shard the data


@nnx.jit
def train_step(model: Network, optimizer: nnx.Optimizer, images, labels) -> jax.Array:
    def loss_of(model: Network) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def test_accuracy(model: Network, images, labels) -> float:
    """Accuracy on the held-back images; every rank tests each ``size``-th image."""
    own = slice(hvd.rank(), None, hvd.size())
    model.eval()
    correct = jnp.sum(jnp.argmax(model(images[own]), axis=1) == labels[own])
    return int(hvd.allreduce(correct, op=hvd.Sum, name="correct")) / len(images)


def ranks_are_equal(model: Network) -> bool:
    """Whether weights and statistics are bitwise equal on all ranks."""
    state = nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat))
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(state)]
    digest = hashlib.sha256(b"".join(leaves)).hexdigest()
    return len(set(hvd.allgather_object(digest))) == 1


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
