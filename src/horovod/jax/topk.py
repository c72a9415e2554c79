"""Top-k: the largest elements of a gradient travel, the others wait in the error.

As in ``horovod.torch.topk``; how many travel depends on the shape only, so programs are static.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from horovod.core.compression import TopKCompressor
from horovod.core.operations import Average
from horovod.jax.collectives import grouped_allgather
from horovod.jax.error_feedback import with_feedback
from horovod.jax.gradient_reduction import CompressedReduction

_MOST_ELEMENTS = (1 << 31) - 1  # indices are int32


class TopK(TopKCompressor):
    """Sparsification with error feedback, for ``DistributedOptimizer`` only.

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

    def _send(self, name: str, arrays: dict[str, Any], errors: dict[str, Any]) -> dict[str, Any]:
        prescale, postscale = self.factors
        ranks = self.process_set.size() or 1
        factor = postscale / (ranks if self.op == Average else 1)
        flat = {path: jnp.ravel(array) for path, array in arrays.items()}
        sent = {path: _largest(x, count=self.compression.count(x.size)) for path, x in flat.items()}
        values = [flat[path][indices] * prescale for path, indices in sent.items()]
        # No bytes. Their shapes make the engine refuse ranks with other shapes or options.
        forms = [jnp.empty((0, sent[path].size, *x.shape), jnp.uint8) for path, x in arrays.items()]
        tensors = [*values, *sent.values(), *forms]
        parts = grouped_allgather(tensors, f"{name}.topk", self.process_set)
        results = {}
        for position, (path, array) in enumerate(arrays.items()):
            left = flat[path].at[sent[path]].set(0, unique_indices=True)
            errors[path] = left.reshape(array.shape)
            received = (parts[position], parts[len(arrays) + position])
            total = _add_up(jnp.zeros_like(flat[path]), *received, ranks=ranks)
            results[path] = (total * factor).reshape(array.shape)
        return results


# Compiled, so that outside of ``jit`` JAX does not trace them in each step.
@partial(jax.jit, static_argnames="count")
def _largest(array: Any, count: int) -> Any:
    """The indices of so many elements of a vector: NaN, then the largest magnitudes."""
    magnitudes = jnp.where(jnp.isnan(array), jnp.inf, jnp.abs(array))
    return jax.lax.top_k(magnitudes, count)[1]


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
