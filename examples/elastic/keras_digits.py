"""Learn to read handwritten digits with Keras's fit, on ranks that come and go while it trains.

    horovodrun -np 2 --min-np 1 --max-np 4 --blacklist-cooldown-range 1 10 \\
        python examples/elastic/keras_digits.py --pause 0.1

Works with any backend of Keras. Kill a rank (process ids are printed): the other ranks go on. The
numbered lines make a script elastic; see docs/elastic.md. Exits non-zero when the accuracy on
unseen images is too low or the ranks' weights differ.
"""

import argparse
import hashlib
import os
import sys
import time

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.keras as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()
    keras.utils.set_random_seed(args.seed)

    train, test = load_data()
    optimizer = keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer)
    model = build_model()
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

    # 1: all that a rank needs to continue, or to start in the middle; `done` are the images of
    # this epoch that all ranks together have trained on
    state = hvd.elastic.KerasState(model, epoch=0, done=0)
    state.register_reset_callbacks([lambda: scale_learning_rate(optimizer, args.lr)])  # 2
    if args.checkpoint and os.path.exists(args.checkpoint):
        state.load(args.checkpoint)  # 3: continue an earlier job
    equal = train_on(state, *train, args)

    _, accuracy = model.evaluate(*test, verbose=0)  # no collectives: other ranks may have ended
    say(
        f"test accuracy {accuracy:.4f}  on Keras {keras.__version__} with {keras.backend.backend()}"
    )
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
    parser.add_argument("--min-accuracy", type=float, default=0.96)
    return parser.parse_args()


@hvd.elastic.run  # 4: call it again after each change of the ranks
def train_on(state, images: np.ndarray, labels: np.ndarray, args: argparse.Namespace) -> bool:
    pids = np.asarray(hvd.allgather(np.array([os.getpid()]), name="pids")).tolist()
    say(
        f"{hvd.size()} rank(s) go on in epoch {state.epoch + 1} after {state.done} images; "
        f"pids {pids}"
    )
    while state.epoch < args.epochs:
        if state.done == len(images):  # the ranks changed after the last batch of an epoch
            state.epoch, state.done = state.epoch + 1, 0
            continue
        own = rest_of_epoch(state, len(images), args)
        state.model.fit(
            images[own],
            labels[own],
            batch_size=args.batch_size,
            shuffle=False,
            verbose=0,
            callbacks=[
                hvd.callbacks.MetricAverageCallback(),
                Progress(state, len(images), args),
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.CommitStateCallback(state, args.commit_every),  # 5: after the others
            ],
        )
        if args.checkpoint:
            state.save(args.checkpoint)
    return weights_are_equal(state.model)


def rest_of_epoch(state, count: int, args: argparse.Namespace) -> np.ndarray:
    """This rank's shard of the epoch's remaining images; shards have equal sizes."""
    left = np.random.default_rng([args.seed, state.epoch]).permutation(count)[state.done :]
    return np.resize(left, -(-len(left) // hvd.size()) * hvd.size())[hvd.rank() :: hvd.size()]


class Progress(keras.callbacks.Callback):
    """Updates ``state.done``."""

    def __init__(self, state, count: int, args: argparse.Namespace) -> None:
        super().__init__()
        self.state, self.count, self.args = state, count, args

    def on_train_batch_end(self, batch: int, logs=None) -> None:
        done = self.state.done + self.args.batch_size * hvd.size()
        self.state.done = min(done, self.count)  # 6: these images are done
        time.sleep(self.args.pause)

    def on_epoch_end(self, epoch: int, logs=None) -> None:
        self.state.done = 0
        number = self.state.epoch + 1
        say(f"epoch {number:2d}/{self.args.epochs}  {hvd.size()} rank(s)  loss {logs['loss']:.4f}")


def scale_learning_rate(optimizer: keras.optimizers.Optimizer, rate: float) -> None:
    """Scale the rate by the number of ranks: a step uses the images of all ranks."""
    optimizer.learning_rate = rate * hvd.size()


def load_data() -> list[tuple[np.ndarray, np.ndarray]]:
    """The digits as [n, 8, 8, 1] floats in 0..1 with labels, split the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.25, random_state=0
    )
    return [(train_x, train_y), (test_x, test_y)]


def build_model() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),  # a state needs a built model
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.4),
            layers.Dense(128, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )


def weights_are_equal(model: keras.Model) -> bool:
    """Whether the weights of all ranks are bitwise equal."""
    bits = b"".join(weight.tobytes() for weight in model.get_weights())
    digest = np.frombuffer(hashlib.sha256(bits).digest(), np.uint8)
    everybody = np.asarray(hvd.allgather(digest.reshape(1, -1), name="weights"))
    return bool((everybody == digest).all())


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
