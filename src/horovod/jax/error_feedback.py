"""Error feedback: what low-bit formats leave out of a gradient is added to the next one.

As in ``horovod.torch.error_feedback``; here the errors are a part of the optimizer's state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from horovod.core.world import engine, rank
from horovod.jax.gradient_reduction import GradientReduction

__all__ = ["FeedbackState", "with_feedback"]


class FeedbackState(NamedTuple):
    """The state of an optimizer with a compression for links.

    Attributes:
        rank: whose errors these are, int32; another rank starts without errors.
        errors: what the last step left out, by path as of ``jax.tree_util.keystr``; float32. What
            is sent exactly has none.
        inner_state: of the wrapped transformation.
    """

    rank: Any
    errors: dict[str, Any]
    inner_state: Any


def with_feedback(inner: Any, reduction: GradientReduction) -> tuple[Any, Any]:
    """``init`` and ``update`` of a transformation on reduced gradients, with error feedback."""

    def init(params: Any) -> FeedbackState:
        leaves = jax.tree_util.tree_flatten_with_path(params)[0]
        named = [(jax.tree_util.keystr(path), jnp.asarray(leaf)) for path, leaf in leaves]
        errors = {p: jnp.zeros(leaf.shape, jnp.float32) for p, leaf in named if _is_coded(p, leaf)}
        return FeedbackState(jnp.int32(rank()), errors, inner.init(params))

    def update(
        gradients: Any, state: FeedbackState, params: Any = None, **extra: Any
    ) -> tuple[Any, FeedbackState]:
        errors = dict(state.errors)
        is_own = state.rank == rank()

        def corrected(path: Any, gradient: Any) -> Any:
            error = errors.get(jax.tree_util.keystr(path))
            if error is None:
                return gradient
            return gradient + jnp.where(is_own, error, 0).astype(gradient.dtype)

        corrected_ones = jax.tree_util.tree_map_with_path(corrected, gradients)
        reduced = reduction.reduce(corrected_ones, errors)
        updates, inner_state = inner.update(reduced, state.inner_state, params, **extra)
        return updates, FeedbackState(jnp.int32(rank()), errors, inner_state)

    return init, update


def _is_coded(path: str, leaf: Any) -> bool:
    is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
    return is_float and not engine().is_exact(path, leaf.size)
