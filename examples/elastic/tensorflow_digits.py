"""Learn to read handwritten digits on ranks that come and go, with a custom loop.

    horovodrun -np 2 --min-np 1 --max-np 4 --blacklist-cooldown-range 1 10 \\
        python examples/elastic/tensorflow_digits.py --pause 0.1

Kill a rank (process ids are printed): the other ranks go on. The numbered lines
make a script elastic; see docs/elastic.md. Exits non-zero when the accuracy on unseen images is
too low or the ranks' weights differ.
"""

import argparse
import hashlib
import os
import sys
import time

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.tensorflow as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)  # enough for 8 x 8 pixels
    tf.keras.utils.set_random_seed(args.seed)

    train, test = load_data()
    model = build_model()
    optimizer = tf.keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.9)
    train_step = make_train_step(model, optimizer)

    # 1: all that a rank needs to continue, or to start in the middle; `done` are the images of
    # this epoch that all ranks together have trained on
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0, done=0)
    state.register_reset_callbacks([lambda: scale_learning_rate(optimizer, args.lr)])  # 2
    if args.checkpoint and os.path.exists(args.checkpoint):
        state.load(args.checkpoint)  # 3: continue an earlier job
    equal = train_on(state, train_step, train, args)

    accuracy = test_accuracy(model, *test)  # no collectives: other ranks may have ended
    say(f"test accuracy {accuracy:.4f}")
    say(f"weights are {'bitwise equal' if equal else 'NOT EQUAL'} on all {hvd.size()} rank(s)")
    if accuracy < args.min_accuracy:
        say(f"accuracy is below {args.min_accuracy}")
    return 0 if equal and accuracy >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commit-every", type=int, default=5, help="steps that a failure may cost")
    parser.add_argument("--checkpoint", help="file to go on from, written after every epoch")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step")
    parser.add_argument("--min-accuracy", type=float, default=0.97)
    return parser.parse_args()


@hvd.elastic.run  # 4: call it again after each change of the ranks
def train_on(state, train_step, train: tuple, args: argparse.Namespace) -> bool:
    pids = hvd.allgather_object(os.getpid(), name="pids")
    say(
        f"{hvd.size()} rank(s) go on in epoch {state.epoch + 1} after {state.done} images; "
        f"pids {pids}"
    )
    while state.epoch < args.epochs:
        loss = train_epoch(state, train_step, *train, args)
        state.epoch, state.done = state.epoch + 1, 0
        say(f"epoch {state.epoch:2d}/{args.epochs}  {hvd.size()} rank(s)  loss {loss:.4f}")
        state.commit()
        if args.checkpoint:
            state.save(args.checkpoint)
    return weights_are_equal(state.model)


def train_epoch(state, train_step, images, labels, args: argparse.Namespace) -> float:
    """Train on the rest of the epoch; the mean loss of this part over all ranks."""
    order = np.random.default_rng([args.seed, state.epoch]).permutation(len(images))
    losses = [0.0]
    step = 0
    while state.done < len(images):
        batch = order[state.done :][: args.batch_size * hvd.size()]
        # Equal numbers for all ranks: images from the front fill up the rest.
        own = np.resize(batch, -(-len(batch) // hvd.size()) * hvd.size())[hvd.rank() :: hvd.size()]
        losses.append(float(train_step(images[own], labels[own])))
        state.done += len(batch)  # 5: these images are done
        step += 1
        if step % args.commit_every == 0:
            state.commit()  # 6: the point to which a failure goes back
        time.sleep(args.pause)
    return float(hvd.allreduce(tf.reduce_mean(losses[1:] or losses), name="loss"))


def scale_learning_rate(optimizer: tf.keras.optimizers.Optimizer, rate: float) -> None:
    """Scale the rate by the number of ranks: a step uses the images of all ranks."""
    optimizer.learning_rate = rate * hvd.size()


def make_train_step(model: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer):
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 8, 8, 1], tf.float32),
            tf.TensorSpec([None], tf.int64),
        ]
    )
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step


def load_data() -> list[tuple]:
    """The digits as [n, 8, 8, 1] floats in 0..1 with labels, split the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.25, random_state=0
    )
    return [(train_x, train_y), (test_x, test_y)]


def build_model() -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),  # a state needs a built model
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.4),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def test_accuracy(model: tf.keras.Model, images, labels) -> float:
    """Accuracy on the held-back images; every rank tests all of them."""
    answers = tf.argmax(model(images, training=False), axis=1)
    return float(tf.reduce_mean(tf.cast(answers == labels, tf.float32)))


def weights_are_equal(model: tf.keras.Model) -> bool:
    """Whether the weights of all ranks are bitwise equal."""
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights()))
    return len(set(hvd.allgather_object(digest.hexdigest(), name="weights"))) == 1


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
