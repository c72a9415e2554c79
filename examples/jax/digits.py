"""Learn to read handwritten digits on any number of ranks, with JAX and optax.

    horovodrun -np 2 python examples/jax/digits.py

Every rank trains on its own shard of the 1797 images that ship with scikit-learn; the gradients
are averaged inside the compiled step. The numbered lines are Horovod's additions to a script.
Exits non-zero when the accuracy on unseen images is too low or the ranks' weights differ.
"""

import argparse
import hashlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.jax as hvd

WIDTHS = (64, 256, 10)


def main() -> int:
    args = parse_arguments()
    hvd.init()  # 1: join the other ranks
    (images, labels), test = load_data()

    params = make_params(args.seed + hvd.rank())  # weights differ; 3 makes them equal
    optimizer = hvd.DistributedOptimizer(  # 2: average the gradients of all ranks
        optax.sgd(args.lr * hvd.size(), momentum=0.9)
    )
    params = hvd.broadcast_parameters(params, root_rank=0)  # 3: start from rank 0's weights
    state = optimizer.init(params)
    train_step = make_train_step(optimizer)

    say(f"training on {hvd.size()} rank(s), {len(images)} images, {len(test[0])} held back")
    start = time.perf_counter()
    for epoch in range(args.epochs):
        losses = []
        for batch in batches_of(len(images), args.batch_size, args.seed + epoch):
            params, state, loss = train_step(params, state, images[batch], labels[batch])
            losses.append(loss)
        loss = hvd.allreduce(jnp.mean(jnp.stack(losses)), name="loss")
        say(f"epoch {epoch + 1:2d}/{args.epochs}  loss {loss:.4f}")
    samples_per_s = args.epochs * len(images) / (time.perf_counter() - start)

    accuracy = test_accuracy(params, *test)
    equal = weights_are_equal(params)
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


def make_params(seed: int) -> list[dict[str, jax.Array]]:
    keys = jax.random.split(jax.random.key(seed), len(WIDTHS) - 1)
    return [
        {"weights": jax.random.normal(key, (fan_in, out)) * fan_in**-0.5, "bias": jnp.zeros(out)}
        for key, fan_in, out in zip(keys, WIDTHS[:-1], WIDTHS[1:], strict=True)
    ]


def logits_of(params, images):
    hidden, out = params
    activated = jax.nn.relu(images @ hidden["weights"] + hidden["bias"])
    return activated @ out["weights"] + out["bias"]


def loss_of(params, images, labels):
    logits = logits_of(params, images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def make_train_step(optimizer: optax.GradientTransformation):
    def train_step(params, state, images, labels):
        loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    return jax.jit(train_step, donate_argnums=(0, 1))


def test_accuracy(params, images, labels) -> float:
    """Accuracy on the held-back images; every rank tests each ``size``-th image."""
    own = slice(hvd.rank(), None, hvd.size())
    answers = jnp.argmax(logits_of(params, images[own]), axis=1)
    correct = jnp.sum(answers == labels[own])
    return int(hvd.allreduce(correct, op=hvd.Sum, name="correct")) / len(images)


def weights_are_equal(params) -> bool:
    """Whether the weights of all ranks are bitwise equal."""
    weights = [np.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(params)]
    digest = hashlib.sha256(b"".join(weights)).hexdigest()
    return len(set(hvd.allgather_object(digest))) == 1


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
