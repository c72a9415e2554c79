"""Error feedback: what a compressor leaves out of a gradient is added to the next one.

As in ``horovod.torch.error_feedback``; here the errors are a part of the optimizer's state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from horovod.core.world import rank
from horovod.jax.gradient_reduction import GradientReduction


class FeedbackState(NamedTuple):
    """The state of an optimizer with top-k, or with a compression for links.

    Attributes:
        rank: whose errors these are, int32; another rank starts without errors.
        errors: what the last step left out, by path as of ``jax.tree_util.keystr``; float32, with
            top-k of float64 gradients float64. What is sent exactly has none.
        inner_state: of the wrapped transformation.
    """

    rank: Any
    errors: dict[str, Any]
    inner_state: Any


def with_feedback(inner: Any, reduction: GradientReduction) -> tuple[Any, Any]:
    """``init`` and ``update`` of a transformation on reduced gradients, with error feedback."""

    def init(params: Any) -> FeedbackState:
        return FeedbackState(jnp.int32(rank()), first_errors(reduction, params), inner.init(params))

    def update(
        gradients: Any, state: FeedbackState, params: Any = None, **extra: Any
    ) -> tuple[Any, FeedbackState]:
        check_state(state, FeedbackState)
        errors = own_errors(state.errors, state.rank)
        reduced = reduce_corrected(reduction, gradients, errors)
        updates, inner_state = inner.update(reduced, state.inner_state, params, **extra)
        return updates, FeedbackState(jnp.int32(rank()), errors, inner_state)

    return init, update


def check_state(state: Any, expected: type) -> None:
    """Refuse the state of an optimizer with another compression.

    Raises:
        ValueError: it is not of the type ``expected``.
    """
    if not isinstance(state, expected):
        raise ValueError(
            f"DistributedOptimizer: with this compression update needs a {expected.__name__}, "
            f"found {type(state).__name__}; make it with optimizer.init(params)"
        )


def first_errors(reduction: GradientReduction, params: Any) -> dict[str, Any]:
    """Zeros by path, for gradients of which the reduction leaves something out."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    named = [(jax.tree_util.keystr(path), jnp.asarray(leaf)) for path, leaf in leaves]
    found = {path: reduction.first_error(path, leaf) for path, leaf in named}
    return {path: error for path, error in found.items() if error is not None}


def own_errors(errors: dict[str, Any], owner: Any) -> dict[str, Any]:
    """The errors, if they are this rank's, else zeros."""
    is_own = owner == rank()
    return {path: jnp.where(is_own, error, 0) for path, error in errors.items()}


def reduce_corrected(reduction: GradientReduction, gradients: Any, errors: dict[str, Any]) -> Any:
    """The reduced gradients, in their dtypes; ``errors`` are added to them first, and changed.

    Raises:
        ValueError: an error does not fit its gradient.
    """

    def corrected(path: Any, gradient: Any) -> Any:
        name = jax.tree_util.keystr(path)
        error = errors.get(name)
        if error is None:
            return gradient
        _check_error(name, error, gradient)
        return reduction.corrected(gradient, error)

    gradients = jax.tree_util.tree_map(jnp.asarray, gradients)
    corrected_ones = jax.tree_util.tree_map_with_path(corrected, gradients)
    reduced = reduction.reduce(corrected_ones, errors)
    return jax.tree_util.tree_map(lambda r, g: r.astype(g.dtype), reduced, gradients)


def _check_error(name: str, error: Any, gradient: Any) -> None:
    """Refuse what would be rounded, or cut to integers, without a word."""
    found, expected = list(error.shape), list(gradient.shape)
    if found != expected:
        raise ValueError(
            f"DistributedOptimizer: the state has errors{name} of shape {found}, expected "
            f"{expected} as of the gradient"
        )
    if error.dtype not in (jnp.float32, jnp.float64):
        raise ValueError(
            f"DistributedOptimizer: the state has errors{name} of dtype {error.dtype}, expected "
            "float32, or float64 as of the gradient"
        )
    if not jnp.issubdtype(gradient.dtype, jnp.floating):
        raise ValueError(
            f"DistributedOptimizer: the gradient {name} has dtype {gradient.dtype}, expected a "
            "floating one as of the parameter that init has seen"
        )
