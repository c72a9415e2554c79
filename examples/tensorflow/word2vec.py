"""Train word vectors from neighbouring words (word2vec), with sparse gradients.

    horovodrun -np 2 python examples/tensorflow/word2vec.py

A step uses few rows of the table of words, so its gradient is a ``tf.IndexedSlices``: rows and row
numbers. Horovod gathers those of all ranks and makes no dense gradient. The text
is made up: a sentence stays on one topic, so words of a topic must end up close to each other.
Exits non-zero when too few do, or the ranks' tables differ.
"""

import argparse
import hashlib
import sys

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd


def main() -> int:
    args = parse_arguments()
    hvd.init()  # 1: join the other ranks
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.random.set_seed(args.seed + hvd.rank())  # weights differ; 4 makes them equal

    topics = np.arange(args.words) % args.topics  # vectors of the words
    pairs = pairs_of_words(made_up_text(topics, args.sentences, seed=0), window=2)
    batches = batches_of(pairs, args)  # 2: a shard of the data

    tables = [tf.Variable(tf.random.normal([args.words, args.width], stddev=0.1)) for _ in range(2)]
    hvd.broadcast_variables(tables, root_rank=0)  # 4: start from rank 0's tables
    train_step = make_train_step(tables, args)
    say(f"training on {hvd.size()} rank(s), {len(pairs)} pairs of {args.words} words")
    for step in range(1, args.steps + 1):
        loss, row_count = train_step(*next(batches))
        if step % (args.steps // 5 or 1) == 0:
            say(f"step {step}/{args.steps}  loss {loss:.4f}  rows in the gradient {row_count}")

    share = share_among_neighbours(tables[0].numpy(), topics)
    equal = len(set(hvd.allgather_object(digest(tables)))) == 1
    say(f"nearest word is of the same topic: {share:.4f}")
    say(f"tables are {'bitwise equal' if equal else 'NOT EQUAL'} on all {hvd.size()} rank(s)")
    return 0 if equal and share >= args.min_share else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", type=int, default=500, help="in the vocabulary")
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--sentences", type=int, default=3000)
    parser.add_argument("--width", type=int, default=16, help="numbers for each word")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=64, help="pairs per rank and step")
    parser.add_argument("--negatives", type=int, default=4, help="words of chance for each pair")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--min-share", type=float, default=0.9, help="of words with a good neighbour"
    )
    return parser.parse_args()


def made_up_text(topics: np.ndarray, sentence_count: int, seed: int) -> np.ndarray:
    """Sentences [n, 10] of word numbers; eight of ten words are of the sentence's topic."""
    generator = np.random.default_rng(seed)
    word_count, topic_count = len(topics), topics.max() + 1
    shape = sentence_count, 10
    topic = generator.integers(topic_count, size=(sentence_count, 1))
    of_topic = topic + topic_count * generator.integers(word_count // topic_count, size=shape)
    return np.where(
        generator.random(shape) < 0.8, of_topic, generator.integers(word_count, size=shape)
    )


def pairs_of_words(sentences: np.ndarray, window: int) -> np.ndarray:
    """All pairs [n, 2] of words that are at most ``window`` apart."""
    apart = [
        np.stack([sentences[:, :-distance].ravel(), sentences[:, distance:].ravel()], axis=1)
        for distance in range(1, window + 1)
    ]
    return np.concatenate(apart)


def batches_of(pairs: np.ndarray, args: argparse.Namespace):
    """Endless batches from this rank's shard: words, their neighbours, random words."""
    own = pairs[hvd.rank() :: hvd.size()]
    generator = np.random.default_rng(args.seed + hvd.rank())
    while True:
        chosen = own[generator.integers(len(own), size=args.batch_size)]
        others = generator.integers(args.words, size=(args.batch_size, args.negatives))
        yield tuple(tf.constant(part) for part in (chosen[:, 0], chosen[:, 1], others))


def make_train_step(tables: list[tf.Variable], args: argparse.Namespace):
    rate = args.lr * hvd.size() * args.batch_size  # the loss is a mean, so a pair's part is small

    @tf.function
    def train_step(words: tf.Tensor, neighbours: tf.Tensor, others: tf.Tensor):
        with tf.GradientTape() as tape:
            loss = loss_of(tables, words, neighbours, others)
        tape = hvd.DistributedGradientTape(tape)  # 3: gather the gradients of all ranks
        gradients = tape.gradient(loss, tables)
        for table, gradient in zip(tables, gradients, strict=True):
            table.scatter_sub(tf.IndexedSlices(rate * gradient.values, gradient.indices))
        return hvd.allreduce(loss, name="loss"), tf.shape(gradients[0].indices)[0]

    return train_step


def loss_of(tables, words: tf.Tensor, neighbours: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Negative sampling (Mikolov et al., 2013): real neighbours score high, random words low."""
    inputs = tf.gather(tables[0], words)
    real = tf.einsum("bw,bw->b", inputs, tf.gather(tables[1], neighbours))
    chance = tf.einsum("bw,bnw->bn", inputs, tf.gather(tables[1], others))
    log_sigmoid = tf.math.log_sigmoid
    return -tf.reduce_mean(log_sigmoid(real) + tf.reduce_sum(log_sigmoid(-chance), axis=1))


def share_among_neighbours(table: np.ndarray, topics: np.ndarray) -> float:
    """The part of words whose nearest word is of the same topic."""
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    likeness = unit @ unit.T - 2 * np.eye(len(table))  # not the word itself
    return float((topics[likeness.argmax(axis=1)] == topics).mean())


def digest(tables: list[tf.Variable]) -> str:
    return hashlib.sha256(b"".join(table.numpy().tobytes() for table in tables)).hexdigest()


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
