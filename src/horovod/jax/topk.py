"""Top-k: the largest elements of a gradient travel, the others wait in the error.

As in ``horovod.torch.topk``, also on the wire; how many travel depends on the shape only, so
programs are static.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from horovod.core.compression import LOW, LOW_BITS, TopKCompressor
from horovod.core.operations import Average
from horovod.jax.collectives import grouped_allgather
from horovod.jax.error_feedback import with_feedback
from horovod.jax.gradient_reduction import CompressedReduction

# What each batch sends beside what is exact, so that its elements can wait for a result.
_ZERO = "zero"
_MOST_ELEMENTS = (1 << 31) - 1  # indices are int32


class TopK(TopKCompressor):
    """Sparsification with error feedback, for ``DistributedOptimizer`` and with local steps.

    The elements of a gradient with the largest magnitudes travel, with their indices. The rest is
    this rank's error, one more array of the gradient's size, in the optimizer's ``FeedbackState``.
    Options and errors are those of ``horovod.core.compression.TopKCompressor``.
    """

    def distribute(
        self, inner: Any, reduction: tuple[Any, ...]
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """``init`` and ``update`` of ``inner``; ``op`` Average or Sum, else ``ValueError``."""
        return with_feedback(inner, TopKReduction(*reduction))


@dataclass(frozen=True)
class TopKReduction(CompressedReduction):
    """Gathers the largest elements of all ranks, and adds them up in the order of the ranks."""

    def first_error(self, path: str, leaf: Any) -> Any:
        """Zeros, float32 or longer; None: the leaf is exact by its name, size or dtype.

        Raises:
            ValueError: it has more elements than an index can tell.
        """
        error = super().first_error(path, leaf)
        if error is None:
            return None
        if leaf.size > _MOST_ELEMENTS:
            raise ValueError(
                f"DistributedOptimizer: compression=topk: parameter {path} has {leaf.size} "
                f"elements, expected at most {_MOST_ELEMENTS}"
            )
        return error.astype(jnp.promote_types(leaf.dtype, jnp.float32))

    def _send(
        self, name: str, plain: dict[str, Any], arrays: dict[str, Any], errors: dict[str, Any]
    ) -> dict[str, Any]:
        results = self._allreduce_first(name, {**plain, _ZERO: jnp.zeros(1, jnp.float32)})
        zero = results.pop(_ZERO).astype(jnp.int16)
        prescale, postscale = self.factors
        ranks = self.process_set.size() or 1
        factor = prescale * postscale / (ranks if self.op == Average else 1)
        flat = {path: jnp.ravel(array) for path, array in arrays.items()}
        sent = {path: _largest(x, count=self.compression.count(x.size)) for path, x in flat.items()}
        kept = {path: flat[path][indices] for path, indices in sent.items()}
        if self.compression.half:
            kept = {path: values.astype(jnp.bfloat16) for path, values in kept.items()}
        packs = [packed(sent[path], elements=x.size) + zero for path, x in flat.items()]
        # No bytes. Their shapes make the engine refuse ranks with other shapes or options.
        forms = [jnp.empty((0, sent[path].size, *x.shape), jnp.uint8) for path, x in arrays.items()]
        tensors = [*kept.values(), *packs, *forms]
        parts = grouped_allgather(tensors, f"{name}.topk", self.process_set)
        for position, (path, array) in enumerate(arrays.items()):
            rounded = kept[path].astype(array.dtype)
            left = flat[path].at[sent[path]].add(-rounded, unique_indices=True)
            errors[path] = left.reshape(array.shape)
            indices = unpacked(parts[len(arrays) + position], elements=array.size, ranks=ranks)
            values = parts[position].astype(array.dtype)
            total = _add_up(jnp.zeros_like(flat[path]), values, indices, ranks=ranks)
            results[path] = (total * factor).reshape(array.shape)
        return results


# Compiled, so that outside of ``jit`` JAX does not trace them in each step.
@partial(jax.jit, static_argnames="count")
def _largest(array: Any, count: int) -> Any:
    """The rising indices of so many elements of a vector: NaN, then the largest magnitudes."""
    magnitudes = jnp.where(jnp.isnan(array), jnp.inf, jnp.abs(array))
    return jnp.sort(jax.lax.top_k(magnitudes, count)[1])


@partial(jax.jit, static_argnames="elements")
def packed(indices: Any, elements: int) -> Any:
    """Rising indices of a vector of so many elements as int16; see ``horovod.torch.topk``."""
    blocks = -(-elements >> LOW_BITS)
    counts = jnp.bincount(indices >> LOW_BITS, length=blocks).astype(jnp.int32)
    halves = jax.lax.bitcast_convert_type(counts, jnp.int16).reshape(-1)
    return jnp.concatenate([halves, indices.astype(jnp.int16)])


@partial(jax.jit, static_argnames=("elements", "ranks"))
def unpacked(parts: Any, elements: int, ranks: int) -> Any:
    """The indices of all ranks, one after the other; -1 for those of a rank that cannot be."""
    blocks = -(-elements >> LOW_BITS)
    by_rank = parts.reshape(ranks, -1)
    halves = by_rank[:, : 2 * blocks].reshape(ranks, blocks, 2)
    counts, low = jax.lax.bitcast_convert_type(halves, jnp.int32), by_rank[:, 2 * blocks :]
    length = low.shape[1]

    def high_of(counts: Any) -> Any:
        is_near = jnp.abs(counts.astype(jnp.float32).sum() - length) < 2.0**31
        is_right = (counts >= 0).all() & (counts.sum() == length) & is_near  # int32 wraps
        high = jnp.repeat(jnp.arange(blocks), counts, total_repeat_length=length)
        return jnp.where(is_right, high, -1)

    high = jax.vmap(high_of)(counts)
    indices = (high << LOW_BITS) + (low.astype(jnp.int32) & LOW)
    return jnp.where(high < 0, -1, indices).reshape(-1)


@partial(jax.jit, static_argnames="ranks")
def _add_up(total: Any, values: Any, indices: Any, ranks: int) -> Any:
    """Add elements to a vector, one rank after the other, so that no order is left to chance.

    An index outside of it, which a program cannot refuse, makes an element NaN.
    """
    is_inside = (indices >= 0) & (indices < total.size)
    values = jnp.where(is_inside, values, jnp.nan).reshape(ranks, -1)

    def add(total: Any, part: tuple[Any, Any]) -> tuple[Any, None]:
        return total.at[part[0]].add(part[1], mode="clip"), None

    return jax.lax.scan(add, total, (indices.reshape(ranks, -1), values))[0]
