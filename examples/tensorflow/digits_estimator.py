"""The same digits with the Estimator API, which TensorFlow has up to version 2.15.

    horovodrun -np 2 python examples/tensorflow/digits_estimator.py

Rank 0 writes checkpoints, evaluates the last one and prints the accuracy. Exits non-zero when the
accuracy on unseen images is too low.
"""

import argparse
import sys

import numpy as np
import tensorflow as tf
from digits_session import build_model, load_data

import horovod.tensorflow as hvd

v1 = tf.compat.v1


def main() -> int:
    args = parse_arguments()
    if not hasattr(tf, "estimator"):
        sys.exit(f"TensorFlow {tf.__version__} has no Estimators; 2.15 is the last one that has")
    hvd.init()  # 1: join the other ranks
    (train_x, train_y), (test_x, test_y) = load_data()

    config = v1.ConfigProto(intra_op_parallelism_threads=1)
    config.gpu_options.visible_device_list = str(hvd.local_rank())  # 2: one GPU per rank
    is_writer = hvd.rank() == 0
    classifier = tf.estimator.Estimator(
        model_fn,
        model_dir=args.model_dir if is_writer else None,  # 3: one writer
        params={"lr": args.lr * hvd.size()},  # 4: larger steps
        config=tf.estimator.RunConfig(
            session_config=config,
            save_checkpoints_steps=200 if is_writer else None,
            save_checkpoints_secs=None,
            tf_random_seed=args.seed + hvd.rank(),
        ),
    )
    own = slice(hvd.rank(), None, hvd.size())
    classifier.train(
        input_of(train_x[own], train_y[own], args.batch_size),
        steps=args.steps // hvd.size(),
        hooks=[hvd.BroadcastGlobalVariablesHook(0)],  # 5: start from rank 0's weights
    )
    if not is_writer:
        return 0
    result = classifier.evaluate(input_of(test_x, test_y, len(test_x)), steps=1)
    print(f"test accuracy {result['accuracy']:.4f}  after step {result['global_step']}", flush=True)
    if result["accuracy"] < args.min_accuracy:
        print(f"accuracy is below {args.min_accuracy}", flush=True)
    return 0 if result["accuracy"] >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=640, help="of one rank; N ranks make 1/N")
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model-dir", help="where rank 0 saves; default: a temporary folder")
    parser.add_argument("--min-accuracy", type=float, default=0.95)
    return parser.parse_args()


def input_of(images: np.ndarray, labels: np.ndarray, batch_size: int):
    def make_dataset() -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(({"images": images}, labels))
        return dataset.shuffle(len(images)).repeat().batch(batch_size)

    return make_dataset


def model_fn(features: dict, labels: tf.Tensor, mode: str, params: dict):
    logits = build_model(features["images"])
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = {"accuracy": v1.metrics.accuracy(labels, tf.argmax(logits, axis=1))}
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = v1.train.MomentumOptimizer(params["lr"], 0.9)
    optimizer = hvd.DistributedOptimizer(optimizer)  # 6: average the gradients of all ranks
    train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


if __name__ == "__main__":
    sys.exit(main())
