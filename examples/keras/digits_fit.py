"""Learn to read handwritten digits with Keras's fit, on any backend of Keras.

    horovodrun -np 2 python examples/keras/digits_fit.py
    KERAS_BACKEND=torch horovodrun -np 2 python examples/keras/digits_fit.py
    KERAS_BACKEND=jax horovodrun -np 2 python examples/keras/digits_fit.py

Every rank trains on its own shard of the images; the gradients are averaged. The numbered lines are
all that Horovod adds to a Keras script. Exits non-zero when the accuracy on unseen images is too
low or the ranks' weights differ.
"""

import argparse
import sys
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.keras as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()  # 1: join the other ranks
    keras.utils.set_random_seed(args.seed + hvd.rank())  # weights differ; 5 makes them equal

    (images, labels), test = load_data()
    count = len(images) // hvd.size() * hvd.size()  # equally many for every rank
    own = slice(hvd.rank(), count, hvd.size())  # 2: shard the data

    optimizer = keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.9)  # 3: larger steps
    optimizer = hvd.DistributedOptimizer(optimizer)  # 4: average the gradients of all ranks
    model = build_model()
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        images[own],
        labels[own],
        batch_size=args.batch_size,
        epochs=args.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # 5: start from rank 0's weights
            hvd.callbacks.MetricAverageCallback(),  # 6: average the metrics of all ranks
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )

    _, accuracy = model.evaluate(*test, verbose=0)
    equal = weights_are_equal(model)
    say(f"test accuracy {accuracy:.4f}  on {backend()}")
    say(f"weights are {'bitwise equal' if equal else 'NOT EQUAL'} on all {hvd.size()} rank(s)")
    if args.export and hvd.rank() == 0:  # all ranks have the same model
        args.export.parent.mkdir(parents=True, exist_ok=True)
        model.save(args.export)  # for inference/serve.py
    if accuracy < args.min_accuracy:
        say(f"accuracy is below {args.min_accuracy}")
    return 0 if equal and accuracy >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--min-accuracy", type=float, default=0.96)
    parser.add_argument("--export", type=Path, help="file for the trained network: *.keras")
    return parser.parse_args()


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
            layers.Input((8, 8, 1)),
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
    own = np.concatenate([weight.ravel() for weight in model.get_weights()])
    everybody = np.asarray(hvd.allgather(own.reshape(1, -1), name="weights"))
    return bool((everybody == own).all())


def backend() -> str:
    return f"Keras {keras.__version__} with {keras.backend.backend()}, {hvd.size()} rank(s)"


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
