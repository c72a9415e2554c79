"""Keras training as in production: warm-up, schedule, averaged metrics, checkpoints, restart.

    horovodrun -np 2 python examples/keras/digits_advanced.py --checkpoints checkpoints

Rank 0 saves the whole model after every epoch. Run the same command again after an interruption,
or with more epochs: rank 0 loads the last file with the optimizer, and broadcasts it to the
other ranks. Warm-up and schedule are those of Goyal et al. (arXiv 1706.02677).
"""

import argparse
import sys
from pathlib import Path

import keras
from digits_fit import backend, build_model, load_data, say, weights_are_equal

import horovod.keras as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()
    keras.utils.set_random_seed(args.seed + hvd.rank())
    (images, labels), test = load_data()
    count = len(images) // hvd.size() * hvd.size()
    own = slice(hvd.rank(), count, hvd.size())

    done = epochs_done(args.checkpoints)
    model = make_model(args, done)
    say(f"training on {backend()}, from epoch {done + 1} to {args.epochs}")
    model.fit(
        images[own],
        labels[own],
        batch_size=args.batch_size,
        initial_epoch=done,
        epochs=args.epochs,
        validation_data=tuple(part[hvd.rank() :: hvd.size()] for part in test),
        callbacks=make_callbacks(args, len(images[own])),
        verbose=2 if hvd.rank() == 0 else 0,
    )

    _, accuracy = model.evaluate(*test, verbose=0)
    equal = weights_are_equal(model)
    say(f"test accuracy {accuracy:.4f}  after epoch {args.epochs}")
    say(f"weights are {'bitwise equal' if equal else 'NOT EQUAL'} on all {hvd.size()} rank(s)")
    if accuracy < args.min_accuracy:
        say(f"accuracy is below {args.min_accuracy}")
    return 0 if equal and accuracy >= args.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--warmup-epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--min-accuracy", type=float, default=0.95)
    return parser.parse_args()


def epochs_done(folder: Path) -> int:
    """The epochs in rank 0's checkpoints; other ranks' disks are ignored."""
    saved = [int(path.stem.rpartition("-")[2]) for path in folder.glob("epoch-*.keras")]
    return int(hvd.broadcast(max(saved, default=0), root_rank=0, name="epochs_done"))


def make_model(args: argparse.Namespace, done: int) -> keras.Model:
    """A new model, or on rank 0 the saved one; either has a distributed optimizer."""
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    if done and hvd.rank() == 0:
        return hvd.load_model(args.checkpoints / f"epoch-{done:03d}.keras", compression=compression)
    optimizer = keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
    model = build_model()
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def make_callbacks(args: argparse.Namespace, image_count: int) -> list[keras.callbacks.Callback]:
    lr = args.lr * hvd.size()
    last_third = args.epochs * 2 // 3
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Before all callbacks that use metrics, so that all ranks decide alike.
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(
            initial_lr=lr,
            warmup_epochs=args.warmup_epochs,
            steps_per_epoch=-(-image_count // args.batch_size),
            verbose=1,
        ),
        hvd.callbacks.LearningRateScheduleCallback(
            initial_lr=lr, multiplier=1.0, start_epoch=args.warmup_epochs, end_epoch=last_third
        ),
        hvd.callbacks.LearningRateScheduleCallback(
            initial_lr=lr, multiplier=lambda epoch: 0.1, start_epoch=last_third
        ),
    ]
    if hvd.rank() == 0:  # one writer
        args.checkpoints.mkdir(parents=True, exist_ok=True)
        path = str(args.checkpoints / "epoch-{epoch:03d}.keras")
        callbacks.append(keras.callbacks.ModelCheckpoint(path))
    return callbacks


if __name__ == "__main__":
    sys.exit(main())
