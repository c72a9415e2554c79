"""The same digits in the style of TensorFlow 1: a graph, a session and hooks.

    horovodrun -np 2 python examples/tensorflow/digits_session.py

Runs on the newest TensorFlow as well as on 2.15. With --checkpoints, rank 0 saves there and a
second run continues from there: the other ranks get step and weights by broadcast.
Exits non-zero when the accuracy on unseen images is too low.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.tensorflow as hvd


def main() -> int:
    args = parse_arguments()
    tf.disable_v2_behavior()
    hvd.init()  # 1: join the other ranks
    tf.set_random_seed(args.seed + hvd.rank())
    train, test = load_data()

    images = tf.placeholder(tf.float32, [None, 8, 8, 1], name="images")
    labels = tf.placeholder(tf.int64, [None], name="labels")
    logits = tf.identity(build_model(images), name="logits")
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)

    optimizer = tf.train.MomentumOptimizer(args.lr * hvd.size(), 0.9)  # 2: larger steps
    optimizer = hvd.DistributedOptimizer(optimizer)  # 3: average the gradients of all ranks
    step = tf.train.get_or_create_global_step()
    train_op = optimizer.minimize(loss, global_step=step)

    accuracy = TestAccuracy(images, labels, logits, test)
    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),  # 4: start from rank 0's weights
        tf.train.StopAtStepHook(last_step=args.steps // hvd.size()),
        accuracy,
    ]
    if args.export and hvd.rank() == 0:  # all ranks have the same weights
        hooks.append(FrozenGraph(args.export, logits))
    if hvd.rank() == 0:
        hooks.append(tf.train.LoggingTensorHook({"step": step, "loss": loss}, every_n_iter=50))
        tf.logging.set_verbosity(tf.logging.INFO)

    config = tf.ConfigProto(intra_op_parallelism_threads=1)
    config.gpu_options.visible_device_list = str(hvd.local_rank())  # 5: one GPU per rank
    batches = batches_of(*train, args.batch_size, args.seed + hvd.rank())
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=args.checkpoints if hvd.rank() == 0 else None,  # 6: one writer
        hooks=hooks,
        config=config,
    ) as session:
        while not session.should_stop():
            own_images, own_labels = next(batches)
            session.run(train_op, {images: own_images, labels: own_labels})

    say(f"test accuracy {accuracy.value:.4f}  after step {accuracy.step} on {hvd.size()} rank(s)")
    if accuracy.value < args.min_accuracy:
        say(f"accuracy is below {args.min_accuracy}")
    return 0 if accuracy.value >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=640, help="of one rank; N ranks make 1/N")
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoints", help="folder to save to and to continue from")
    parser.add_argument("--min-accuracy", type=float, default=0.95)
    parser.add_argument("--export", type=Path, help="file for the frozen graph: *.pb")
    return parser.parse_args()


def load_data() -> list[tuple[np.ndarray, np.ndarray]]:
    """The digits as [n, 8, 8, 1] floats in 0..1 with labels, split the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.25, random_state=0
    )
    return [(train_x, train_y), (test_x, test_y)]


def batches_of(images: np.ndarray, labels: np.ndarray, batch_size: int, seed: int):
    """Endless random batches, different on each rank."""
    generator = np.random.default_rng(seed)
    while True:
        chosen = generator.integers(len(images), size=batch_size)
        yield images[chosen], labels[chosen]


def build_model(images: tf.Tensor) -> tf.Tensor:
    hidden = tf.nn.relu(convolution("conv1", images, 32))
    hidden = tf.nn.relu(convolution("conv2", hidden, 64))
    hidden = tf.nn.max_pool2d(hidden, 2, 2, "VALID")
    hidden = tf.nn.relu(dense("dense1", tf.reshape(hidden, [-1, 4 * 4 * 64]), 128))
    return dense("dense2", hidden, 10)


def convolution(name: str, images: tf.Tensor, filter_count: int) -> tf.Tensor:
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [3, 3, images.shape[-1], filter_count])
        bias = tf.get_variable("bias", [filter_count], initializer=tf.zeros_initializer())
        return tf.nn.conv2d(images, kernel, strides=1, padding="SAME") + bias


def dense(name: str, inputs: tf.Tensor, width: int) -> tf.Tensor:
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [inputs.shape[-1], width])
        bias = tf.get_variable("bias", [width], initializer=tf.zeros_initializer())
        return tf.matmul(inputs, kernel) + bias


class TestAccuracy(tf.train.SessionRunHook):
    """Tests the held-back images when training ends; every rank tests each ``size``-th image."""

    def __init__(self, images: tf.Tensor, labels: tf.Tensor, logits: tf.Tensor, test) -> None:
        own = slice(hvd.rank(), None, hvd.size())
        self._count = len(test[0])
        self._feed = {images: test[0][own], labels: test[1][own]}
        correct = tf.cast(tf.equal(tf.argmax(logits, axis=1), labels), tf.int64)
        self._correct = hvd.allreduce(tf.reduce_sum(correct), op=hvd.Sum, name="correct")

    def end(self, session: tf.Session) -> None:
        self.step = session.run(tf.train.get_global_step())
        self.value = session.run(self._correct, self._feed) / self._count


class FrozenGraph(tf.train.SessionRunHook):
    """Writes the graph of ``output``, with the weights as constants, when training ends.

    It has no gradients, reductions and optimizer.
    """

    def __init__(self, path: Path, output: tf.Tensor) -> None:
        self._path, self._output = path, output.op.name

    def end(self, session: tf.Session) -> None:
        graph = tf.graph_util.convert_variables_to_constants(
            session, tf.get_default_graph().as_graph_def(), [self._output]
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(graph.SerializeToString())


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
