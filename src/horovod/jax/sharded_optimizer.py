"""The step of an optax transformation that ranks share: each updates its part of the elements.

A reducescatter gives every rank its part of the reduced gradients, the transformation updates it,
and an allgather gives every rank all updates. So ranks send what an allreduce sends. The tree of
parameters keeps its structure, with a flat part in the place of every array: masks and labels of a
transformation fit as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from horovod.core.world import has_others
from horovod.jax.collectives import gather_parts, reduce_parts
from horovod.jax.elementwise import check_elementwise, layout_of
from horovod.jax.gradient_reduction import GradientReduction
from horovod.jax.sharded_state import ShardedState, place_in


@dataclass(frozen=True)
class ShareReduction(GradientReduction):
    """Reduces this rank's part of every gradient; the result is flat."""

    def __call__(self, gradients: Any) -> Any:
        """The rank's part of the reduced gradients, in the same structure."""
        flat = jax.tree_util.tree_map(lambda gradient: jnp.reshape(gradient, -1), gradients)
        fill_up = place_in(self.process_set).fill_up
        return jax.tree_util.tree_map(fill_up, super().__call__(flat), gradients)

    def exchange(self, name: str, arrays: dict[str, Any], errors: dict[str, Any]) -> dict[str, Any]:
        """This rank's part of each array, reduced in one operation; there are no errors."""
        parts = reduce_parts(list(arrays.values()), name, self.how)
        return dict(zip(arrays, parts, strict=True))

    def gather(self, parts: Any, like: Any) -> Any:
        """The arrays of which each rank has a part.

        Args:
            parts: a pytree of this rank's parts.
            like: the arrays that have the shapes.

        Raises:
            ValueError: a part is not of the length that it should have.
        """
        place = place_in(self.process_set)
        own, structure = jax.tree_util.tree_flatten_with_path(parts)
        wholes = structure.flatten_up_to(like)
        for (path, part), whole in zip(own, wholes, strict=True):
            wanted = jax.eval_shape(place.own, whole).shape
            if jnp.shape(part) != wanted:
                raise ValueError(
                    f"DistributedOptimizer: sharded: the update{jax.tree_util.keystr(path)} of a "
                    f"share has shape {list(jnp.shape(part))}, expected {list(wanted)}"
                )
        found = [part[: place.count(w)] for (_, part), w in zip(own, wholes, strict=True)]
        if found and has_others(self.process_set):
            rows = [jnp.size(whole) for whole in wholes]
            found = gather_parts(found, rows, f"{self.name}.updates", self.process_set)
        shaped = [jnp.reshape(x, jnp.shape(w)) for x, w in zip(found, wholes, strict=True)]
        return structure.unflatten(shaped)


def share_step(
    inner: Any, reduce: ShareReduction, is_checked: bool
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The functions ``init`` and ``update`` of a transformation whose step ranks share.

    Args:
        inner: the transformation; takes extra arguments.
        reduce: how gradients are reduced.
        is_checked: refuse a transformation that may not treat every element alike.
    """

    def init(params: Any) -> ShardedState:
        if is_checked:
            check_elementwise(inner, params)
        place = place_in(reduce.process_set)
        layout = layout_of(inner, params, place)
        return ShardedState(inner.init(place.own_all(params)), layout)

    def update(
        gradients: Any, state: ShardedState, params: Any = None, **extra: Any
    ) -> tuple[Any, ShardedState]:
        place = place_in(reduce.process_set)
        if not isinstance(state, ShardedState):
            raise ValueError(
                f"DistributedOptimizer: sharded: update needs this rank's share of the state, "
                f"found {type(state).__name__}; cut a whole state with shard_optimizer_state(whole,"
                " optimizer.init(params))"
            )
        state.layout.check(place)
        own_params = None if params is None else place.own_all(params)
        own, inner_state = inner.update(reduce(gradients), state.inner_state, own_params, **extra)
        return reduce.gather(own, gradients), replace(state, inner_state=inner_state)

    return init, update
