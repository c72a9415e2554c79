"""Images per second of a training on N ranks: A network of Keras on made-up images.

    horovodrun -np 1 python examples/tensorflow/synthetic_benchmark.py
    horovodrun -np 2 python examples/tensorflow/synthetic_benchmark.py
    horovodrun -np 2 python examples/tensorflow/synthetic_benchmark.py --small

The total of N ranks divided by N times that of one rank is the scaling efficiency. On one machine
compare with equal threads per rank (--threads): the ranks share its cores.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()
    pin_device(args)
    tf.keras.utils.set_random_seed(args.seed)

    model = small_network() if args.small else network(args.model, args.image_size)
    step = training_step(model, args)
    step()
    hvd.broadcast_variables(model.variables, root_rank=0)

    say(describe(model, args))
    for _ in range(args.warmup_batches):
        step()
    speeds = []
    for iteration in range(args.iterations):
        speeds.append(images_per_s(step, args.batches_per_iteration, args.batch_size))
        say(f"iteration {iteration + 1:2d}/{args.iterations}  {speeds[-1]:.1f} img/s per rank")
    report(speeds)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ResNet50", help="a name in tf.keras.applications")
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--image-size", type=int, help="pixels; default 224, or 32 with --small")
    parser.add_argument("--warmup-batches", type=int, default=10, help="not measured")
    parser.add_argument("--iterations", type=int, default=10, help="figures to average")
    parser.add_argument("--batches-per-iteration", type=int, default=10)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--small", action="store_true", help="a tiny network, for a quick test")
    parser.add_argument("--no-cuda", action="store_true", help="use the CPU even if there is a GPU")
    parser.add_argument(
        "--threads", type=int, help="of TensorFlow per rank; default: its share of cores"
    )
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.image_size = args.image_size or (32 if args.small else 224)
    return args


def pin_device(args: argparse.Namespace) -> None:
    """This rank's GPU, one per local rank, or the CPU with its share of cores."""
    gpus = tf.config.list_physical_devices("GPU")
    own = [] if args.no_cuda or not gpus else gpus[hvd.local_rank() % len(gpus)]
    tf.config.set_visible_devices(own, "GPU")
    threads = args.threads or max(1, (os.cpu_count() or 1) // hvd.local_size())
    tf.config.threading.set_intra_op_parallelism_threads(threads)


def network(name: str, image_size: int) -> tf.keras.Model:
    make = getattr(tf.keras.applications, name)
    return make(weights=None, input_shape=(image_size, image_size, 3), classifier_activation=None)


def small_network() -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((None, None, 3)),
            layers.Conv2D(8, 3, strides=2, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )


def training_step(model: tf.keras.Model, args: argparse.Namespace) -> Callable[[], tf.Tensor]:
    """A function that trains on one batch of random images."""
    images = tf.random.normal([args.batch_size, args.image_size, args.image_size, 3])
    labels = tf.random.uniform([args.batch_size], maxval=10, dtype=tf.int64)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.SGD(0.01)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def images_per_s(step: Callable[[], tf.Tensor], batch_count: int, batch_size: int) -> float:
    """Images per second of this rank; other ranks are as fast, because every step waits for all."""
    start = time.perf_counter()
    for _ in range(batch_count):
        loss = step()
    loss.numpy()  # a GPU has finished only then
    return batch_count * batch_size / (time.perf_counter() - start)


def describe(model: tf.keras.Model, args: argparse.Namespace) -> str:
    weights = model.trainable_variables
    element_count = sum(int(np.prod(weight.shape)) for weight in weights)
    return (
        f"{hvd.size()} rank(s), {element_count:,} weights in {len(weights)} tensors, "
        f"batches of {args.batch_size} images of {args.image_size} x {args.image_size}"
    )


def report(speeds: list[float]) -> None:
    """Print the mean over iterations of one rank and of all, with two standard deviations."""
    mean_of_ranks = hvd.allreduce(tf.constant(speeds), name="speeds").numpy()
    mean, spread = mean_of_ranks.mean(), 2 * mean_of_ranks.std()
    say(f"per rank:   {mean:.1f} +- {spread:.1f} img/s")
    say(f"{hvd.size()} rank(s):  {hvd.size() * mean:.1f} +- {hvd.size() * spread:.1f} img/s")


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
