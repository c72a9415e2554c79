"""Train a small transformer to write as Python's documentation does, on any number of ranks.

    horovodrun -np 2 python examples/jax/transformer.py

It reads Python's language reference (0.5 MB), which ships with every Python for ``help()``, letter
by letter; the last tenth is held back. Plain JAX: the layers are one ``scan``, the optimizer is
clipped AdamW with a schedule, and the gradients are averaged inside the compiled step. The numbered
lines are all that Horovod adds to a script. Exits non-zero when the loss on unseen text is too high
or the ranks' weights differ.
"""

import argparse
import hashlib
import math
import pydoc_data.topics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import horovod.jax as hvd

WIDTH, HEADS, LAYERS, CONTEXT = 64, 4, 2, 64


def main() -> int:
    args = parse_arguments()
    hvd.init()  # 1: join the other ranks
    letters, train, test = load_text()

    # Ranks start with different weights; 3 makes them equal.
    params = make_params(args.seed + hvd.rank(), len(letters))
    schedule = optax.warmup_cosine_decay_schedule(0, args.lr, args.steps // 10, args.steps)
    optimizer = hvd.DistributedOptimizer(  # 2: average the gradients of all ranks
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule)),
        compression=getattr(hvd.Compression, args.compression),
    )
    params = hvd.broadcast_parameters(params, root_rank=0)  # 3: start from rank 0's weights
    state = optimizer.init(params)
    train_step = make_train_step(optimizer)

    count = sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))
    say(f"training {count} parameters on {hvd.size()} rank(s), {len(train)} letters of text")
    start = time.perf_counter()
    for step in range(args.steps):
        batch = windows_of(train, args.batch_size, args.seed + step)
        params, state, loss = train_step(params, state, batch)
        if (step + 1) % args.report_every == 0 or step + 1 == args.steps:
            say(f"step {step + 1:4d}/{args.steps}  loss {loss:.4f}")
    letters_per_s = args.steps * batch.size * hvd.size() / (time.perf_counter() - start)

    test_loss = loss_on(params, test)
    equal = weights_are_equal(params)
    say(f"test loss {test_loss:.4f}  ({letters_per_s:.0f} letters/s over all ranks)")
    say(f"weights are {'bitwise equal' if equal else 'NOT EQUAL'} on all {hvd.size()} rank(s)")
    if hvd.rank() == 0:
        print("It writes:", repr(write(params, letters, "The statement ", args.letters, args.seed)))
    if test_loss > args.max_loss:
        say(f"the loss is above {args.max_loss}")
    return 0 if equal and test_loss <= args.max_loss else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="windows per rank and step")
    parser.add_argument("--lr", type=float, default=1e-2, help="highest learning rate")
    parser.add_argument("--compression", choices=["none", "fp16", "bf16"], default="none")
    parser.add_argument("--report-every", type=int, default=50, help="steps between two reports")
    parser.add_argument("--letters", type=int, default=120, help="letters to write at the end")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-loss", type=float, default=2.3, help="on unseen text, in nats")
    return parser.parse_args()


def load_text() -> tuple[str, np.ndarray, np.ndarray]:
    """The letters, and the text as letter numbers: for training, and held back."""
    topics = pydoc_data.topics.topics
    text = "".join(topics[name] for name in sorted(topics))
    letters = "".join(sorted(set(text)))
    numbers = np.searchsorted(list(letters), list(text)).astype("int32")
    end = len(numbers) * 9 // 10
    return letters, numbers[:end], numbers[end:]


def windows_of(text: np.ndarray, batch_size: int, seed: int) -> np.ndarray:
    """This rank's part of windows that are equal on all ranks: [batch_size, CONTEXT + 1]."""
    last = len(text) - CONTEXT - 1
    begins = np.random.default_rng(seed).integers(0, last, batch_size * hvd.size())
    own = begins[hvd.rank() :: hvd.size()]  # 4: shard the data
    return text[own[:, None] + np.arange(CONTEXT + 1)]


def make_params(seed: int, letter_count: int) -> dict[str, jax.Array]:
    """The weights; those of the layers are stacked along the first dimension."""
    keys = iter(jax.random.split(jax.random.key(seed), 6))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) * shape[-2] ** -0.5

    return {
        "letters": normal(letter_count, WIDTH),
        "places": normal(CONTEXT, WIDTH),
        "layers": {
            "attention_norm": jnp.ones((LAYERS, WIDTH)),
            "attention": normal(LAYERS, WIDTH, 3 * WIDTH),
            "attention_out": normal(LAYERS, WIDTH, WIDTH),
            "dense_norm": jnp.ones((LAYERS, WIDTH)),
            "dense": normal(LAYERS, WIDTH, 4 * WIDTH),
            "dense_out": normal(LAYERS, 4 * WIDTH, WIDTH),
        },
        "norm": jnp.ones(WIDTH),
    }


def normalised(hidden: jax.Array, scale: jax.Array) -> jax.Array:
    return hidden * scale * jax.lax.rsqrt(jnp.mean(hidden**2, axis=-1, keepdims=True) + 1e-6)


def attend(hidden: jax.Array, weights: jax.Array) -> jax.Array:
    """Causal attention of each position over the earlier ones; [batch, CONTEXT, WIDTH]."""
    batch, length, _ = hidden.shape
    mixed = (hidden @ weights).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
    query, key, value = mixed[:, :, 0], mixed[:, :, 1], mixed[:, :, 2]
    taken = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    return taken.reshape(batch, length, WIDTH)


def logits_of(params, inputs: jax.Array) -> jax.Array:
    """Scores for the letter after each position: [batch, CONTEXT, letters]."""

    def layer(hidden, weights):
        mixed = attend(normalised(hidden, weights["attention_norm"]), weights["attention"])
        hidden = hidden + mixed @ weights["attention_out"]
        dense = jax.nn.gelu(normalised(hidden, weights["dense_norm"]) @ weights["dense"])
        return hidden + dense @ weights["dense_out"], None

    hidden = params["letters"][inputs] + params["places"][: inputs.shape[1]]
    hidden, _ = jax.lax.scan(layer, hidden, params["layers"])
    return normalised(hidden, params["norm"]) @ params["letters"].T


def loss_of(params, batch: jax.Array) -> jax.Array:
    logits = logits_of(params, batch[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()


def make_train_step(optimizer: optax.GradientTransformation):
    def train_step(params, state, batch):
        loss, gradients = jax.value_and_grad(loss_of)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, hvd.allreduce(loss, name="loss")

    return jax.jit(train_step, donate_argnums=(0, 1))


def loss_on(params, text: np.ndarray) -> float:
    """The loss on windows of unseen text; every rank tests each ``size``-th window."""
    count = len(text) // (CONTEXT + 1) // hvd.size() * hvd.size()
    windows = text[: count * (CONTEXT + 1)].reshape(count, CONTEXT + 1)[hvd.rank() :: hvd.size()]
    parts = np.array_split(windows, math.ceil(len(windows) / 64))
    total = sum(float(jax.jit(loss_of)(params, part)) * len(part) for part in parts)
    return float(hvd.allreduce(jnp.array(total), op=hvd.Sum, name="test loss")) / count


def write(params, letters: str, text: str, count: int, seed: int) -> str:
    """``text`` and ``count`` letters after it, drawn from the network's distribution."""

    @jax.jit
    def next_letter(window, key, place):
        return jax.random.categorical(key, logits_of(params, window)[0, place] / 0.7)

    numbers = list(np.searchsorted(list(letters), list(text)))
    for key in jax.random.split(jax.random.key(seed), count):
        window = numbers[-CONTEXT:]
        place = len(window) - 1
        padded = np.array([window + [0] * (CONTEXT - len(window))])
        numbers.append(int(next_letter(padded, key, place)))
    return "".join(letters[number] for number in numbers)


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
