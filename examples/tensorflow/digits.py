"""Learn to read handwritten digits on any number of ranks, with a custom loop.

    horovodrun -np 2 python examples/tensorflow/digits.py

Every rank trains on its own shard of the 1797 images that ship with scikit-learn; the gradients
are averaged. The numbered lines are Horovod's additions to a TensorFlow 2 script. Exits non-zero
when the accuracy on unseen images is too low or the ranks' weights differ.
"""

import argparse
import hashlib
import sys
import time

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.tensorflow as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()  # 1: join the other ranks
    pin_device()
    tf.keras.utils.set_random_seed(args.seed + hvd.rank())  # weights differ; 5 makes them equal

    (images, labels), test = load_data()
    dataset = share_of(images, labels, args.seed).batch(args.batch_size)  # 2: shard the data

    model = build_model()
    optimizer = tf.keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.9)  # 3: larger steps
    train_step = make_train_step(model, optimizer)

    say(f"training on {hvd.size()} rank(s), {len(images)} images, {len(test[0])} held back")
    start = time.perf_counter()
    for epoch in range(args.epochs):
        losses = []
        for step, batch in enumerate(dataset):
            losses.append(train_step(*batch))
            if epoch == step == 0:
                # 5: start from rank 0's weights and momentum; both exist after the first step
                hvd.broadcast_variables(model.variables, root_rank=0)
                hvd.broadcast_variables(optimizer.variables, root_rank=0)
        loss = hvd.allreduce(tf.reduce_mean(losses), name="loss")
        say(f"epoch {epoch + 1:2d}/{args.epochs}  loss {loss:.4f}")
    samples_per_s = args.epochs * len(images) / (time.perf_counter() - start)

    accuracy = test_accuracy(model, *test)
    equal = weights_are_equal(model)
    say(f"test accuracy {accuracy:.4f}  ({samples_per_s:.0f} samples/s over all ranks)")
    say(f"weights are {'bitwise equal' if equal else 'NOT EQUAL'} on all {hvd.size()} rank(s)")
    if args.export and hvd.rank() == 0:  # all ranks have the same model
        model.export(args.export)  # a SavedModel of the forward pass, for inference/serve.py
    if accuracy < args.min_accuracy:
        say(f"accuracy is below {args.min_accuracy}")
    return 0 if equal and accuracy >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--min-accuracy", type=float, default=0.97)
    parser.add_argument("--export", help="folder for the trained network, as a SavedModel")
    return parser.parse_args()


def pin_device() -> None:
    """This rank's GPU, one per local rank, or one thread."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)


def load_data() -> list[tuple]:
    """The digits as [n, 8, 8, 1] floats in 0..1 with labels, split the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.25, random_state=0
    )
    return [(train_x, train_y), (test_x, test_y)]


def share_of(images, labels, seed: int) -> tf.data.Dataset:
    """Every ``size``-th image of an order that changes each epoch; equally many per rank."""
    count = len(images) // hvd.size() * hvd.size()
    whole = tf.data.Dataset.from_tensor_slices((images, labels))
    return whole.shuffle(len(images), seed=seed).take(count).shard(hvd.size(), hvd.rank())


def build_model() -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.4),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def make_train_step(model: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer):
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)  # 4: average the gradients of all ranks
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step


def test_accuracy(model: tf.keras.Model, images, labels) -> float:
    """Accuracy on the held-back images; every rank tests each ``size``-th image."""
    own = slice(hvd.rank(), None, hvd.size())
    answers = tf.argmax(model(images[own], training=False), axis=1)
    correct = tf.reduce_sum(tf.cast(answers == labels[own], tf.int64))
    return int(hvd.allreduce(correct, op=hvd.Sum, name="correct")) / len(images)


def weights_are_equal(model: tf.keras.Model) -> bool:
    """Whether the weights of all ranks are bitwise equal."""
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights()))
    return len(set(hvd.allgather_object(digest.hexdigest(), name="weights"))) == 1


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
