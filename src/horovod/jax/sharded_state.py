"""The state of an optimizer whose step ranks share, and the whole of it.

Whole, it is what the transformation makes for the parameters themselves. A share has the same
structure: arrays of parameters' elements are flat and have those that the rank owns, as a
reducescatter splits them, and all others are the same on every rank. A single element has a second
one beside it, which means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from horovod.core.calls import exchange
from horovod.core.operations import Kind, own_part
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.core.world import has_others
from horovod.jax import eager
from horovod.jax.eager import call_on


class Place(NamedTuple):
    """A rank of the ranks that share a step."""

    rank: int
    size: int

    def count(self, array: Any) -> int:
        """How many elements of an array the rank owns."""
        part = own_part(np.size(array), *self)
        return int(part.stop - part.start)

    def own(self, array: Any) -> Any:
        """The rank's elements of an array, flat and filled up."""
        part = jnp.reshape(array, -1)[own_part(np.size(array), *self)]
        return self.fill_up(part, array)

    def fill_up(self, part: Any, array: Any) -> Any:
        """A second element where there is one of several.

        XLA rounds otherwise in arrays of one element: it divides, where it multiplies longer ones
        by the reciprocal.
        """
        return jnp.pad(part, (0, 1)) if self.count(array) == 1 < np.size(array) else part

    def own_all(self, tree: Any) -> Any:
        """The rank's elements of each array of a pytree."""
        return jax.tree_util.tree_map(self.own, tree)


def place_in(process_set: ProcessSet) -> Place:
    """This rank's place; alone where it has no others to share with."""
    if not has_others(process_set):
        return Place(0, 1)
    return Place(process_set.rank() or 0, process_set.size() or 1)


class Layout(NamedTuple):
    """What is where in a share.

    Attributes:
        place: whose it is.
        shapes: of each leaf of the whole state; None for those that are the same on every rank.
    """

    place: Place
    shapes: tuple[tuple[int, ...] | None, ...]

    def check(self, place: Place) -> None:
        """``ValueError`` if the world is another one."""
        if self.place != place:
            raise ValueError(
                f"DistributedOptimizer: sharded=True: this state is that of rank {self.place.rank} "
                f"of {self.place.size}, and this is rank {place.rank} of {place.size} now; keep "
                "the whole state (whole_optimizer_state) and cut it (shard_optimizer_state)"
            )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ShardedState:
    """This rank's share of the state of an optax transformation; a pytree.

    Attributes:
        inner_state: the transformation's state for the rank's elements.
        layout: not traced.
    """

    inner_state: Any
    layout: Layout = field(metadata={"static": True})


def whole_optimizer_state(state: Any, process_set: ProcessSet = global_process_set) -> Any:
    """The state that an optimizer without ``sharded`` would have, on every rank.

    For checkpoints, which then fit any number of ranks. Not inside of ``jit``; blocks until all
    ranks of the set call it.

    Args:
        state: any pytree with states of optimizers with ``sharded=True`` in it.
        process_set: the optimizer's.

    Raises:
        ValueError: the state is that of another world, or is being traced.
    """
    place = place_in(process_set)
    nodes, structure = jax.tree_util.tree_flatten(state, is_leaf=_is_share)
    shares = [node for node in nodes if _is_share(node)]
    for node in shares:
        node.layout.check(place)
    leaves = jax.tree_util.tree_leaves([node.inner_state for node in shares])
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise ValueError("whole_optimizer_state: call it outside of jit")
    shapes = [shape for node in shares for shape in node.layout.shapes]
    gathered = iter(_gather(leaves, shapes, process_set))

    def whole(node: Any) -> Any:
        return jax.tree_util.tree_map(lambda _: next(gathered), node.inner_state)

    return structure.unflatten([whole(node) if _is_share(node) else node for node in nodes])


def shard_optimizer_state(whole: Any, state: Any) -> Any:
    """This rank's share of a whole state; no communication.

    Args:
        whole: what ``whole_optimizer_state`` has given, or an optimizer without ``sharded``, in a
            world of any size.
        state: of the same structure with states of optimizers with ``sharded=True`` in it, such as
            ``optimizer.init(params)``. Its values do not matter.

    Raises:
        ValueError: the whole state has another structure, or an array another shape.
    """
    nodes, structure = jax.tree_util.tree_flatten_with_path(state, is_leaf=_is_share)
    try:
        parts = jax.tree_util.tree_structure(state, is_leaf=_is_share).flatten_up_to(whole)
    except ValueError as error:
        raise ValueError(f"shard_optimizer_state: the whole state does not fit: {error}") from error
    return structure.unflatten(
        [
            _cut(part, node, jax.tree_util.keystr(path)) if _is_share(node) else part
            for (path, node), part in zip(nodes, parts, strict=True)
        ]
    )


def check_no_shares(tree: Any, title: str) -> None:
    """``ValueError`` if ranks have shares of a state in it, which are no copies of each other."""
    if any(map(_is_share, jax.tree_util.tree_leaves(tree, is_leaf=_is_share))):
        raise ValueError(
            f"{title}: this is the state of an optimizer with sharded=True, of which every rank "
            "has another share. Use whole_optimizer_state(state) here, and shard_optimizer_state "
            "on the result; before init give parameters alone"
        )


def _is_share(node: Any) -> bool:
    return isinstance(node, ShardedState)


def _gather(
    leaves: list[Any], shapes: list[tuple[int, ...] | None], process_set: ProcessSet
) -> list[Any]:
    """The whole of each leaf that has a shape; the others as they are."""
    results, wires = list(leaves), {}
    for i, shape in enumerate(shapes):
        if shape is not None:
            count = place_in(process_set).count(np.empty(shape, bool))
            wires[i] = _as_bytes(np.asarray(leaves[i])[:count])
    if wires and has_others(process_set):
        checked = exchange(Kind.ALLGATHER, process_set)
        call = call_on(process_set, checked, ["optimizer_state"], is_group=True)
        wires = dict(zip(wires, eager.run_on_host(call, list(wires.values())), strict=True))
    for i, wire in wires.items():
        flat = np.ascontiguousarray(wire).reshape(-1).view(leaves[i].dtype)
        results[i] = jnp.array(flat.reshape(shapes[i]))
    return results


def _as_bytes(array: Any) -> Any:
    """A row of bytes for each element: the engine does not know every dtype of JAX."""
    return array.view(np.uint8).reshape(array.size, array.dtype.itemsize)


def _cut(whole: Any, node: ShardedState, path: str) -> ShardedState:
    found, structure = jax.tree_util.tree_flatten(whole)
    current, expected = jax.tree_util.tree_flatten_with_path(node.inner_state)
    if structure != expected:
        raise ValueError(
            f"shard_optimizer_state: state{path} has structure {structure}, expected {expected}"
        )
    shares = []
    for leaf, (at, own), shape in zip(found, current, node.layout.shapes, strict=True):
        wanted = np.shape(own) if shape is None else shape
        if np.shape(leaf) != wanted:
            raise ValueError(
                f"shard_optimizer_state: state{path}{jax.tree_util.keystr(at)} has shape "
                f"{list(np.shape(leaf))}, expected {list(wanted)}"
            )
        shares.append(leaf if shape is None else node.layout.place.own(jnp.asarray(leaf)))
    return replace(node, inner_state=structure.unflatten(shares))
