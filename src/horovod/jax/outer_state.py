"""The outer state of local steps in JAX, and what becomes of it between two inner steps.

step       steps so far
agreed     the agreed parameters: an array for each, in their order
momentum   of the outer optimizer, alike; empty if it has none
agreed_at  by fragment: the step after which the rank had the agreed parameters
arrived    by fragment: averages that are not merged yet
errors     with top-k: a rank, and what of its changes has not been sent, by fragment and path
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from horovod.core.local_steps import LocalSteps, checksum_of, mixed

Array = NDArray[Any]
OuterState = dict[str, Any]


class OuterRound:
    """Parameters and outer state while fragments of them are sent and merged."""

    def __init__(
        self, params: Any, leaves: list[Any], outer: OuterState, parts: list[range]
    ) -> None:
        self._structure = jax.tree_util.tree_structure(params)
        self._leaves = leaves
        self._parts = parts
        lists = {key: list(outer[key]) for key in ("agreed", "momentum", "agreed_at")}
        self.outer: OuterState = {**outer, **lists, "arrived": dict(outer["arrived"])}

    def check_unchanged(self, title: str) -> None:
        """``ValueError`` for parameters that are not the agreed ones, before the first step.

        Nothing would be sent of them, and ranks would go on with different ones.
        """
        for leaf, agreed in zip(self._leaves, self.outer["agreed"], strict=True):
            if not np.array_equal(on_host(leaf), on_host(like(leaf, agreed)), equal_nan=True):
                raise ValueError(
                    f"{title}: params have changed since begin(), but no step was counted; call "
                    "params, outer = sync(params, outer) after each inner step, outside of jit"
                )

    def checksum(self, number: int) -> int:
        """Of the agreed parameters of a fragment."""
        return checksum_of(self.outer["agreed"][i].tobytes() for i in self._parts[number])

    def changes(self, number: int) -> list[Array]:
        """The outer gradients of a fragment on this rank: new arrays that may be written."""
        found = []
        for index in self._parts[number]:
            agreed = self.outer["agreed"][index]
            own = on_host(self._leaves[index])
            found.append(np.asarray(agreed - own, agreed.dtype, order="C"))
        return found

    def merge(
        self, number: int, gradients: Sequence[Array], rules: LocalSteps, weight: float
    ) -> None:
        """Make the outer step of a fragment, and move its parameters."""
        agreed, momenta = self.outer["agreed"], self.outer["momentum"]
        for index, gradient in zip(self._parts[number], gradients, strict=True):
            dtype, leaf = agreed[index].dtype, self._leaves[index]
            momentum = momenta[index] if momenta else None
            stepped, momentum = rules.step_outer(agreed[index], momentum, gradient)
            agreed[index] = np.asarray(stepped, dtype)
            if momentum is not None:
                momenta[index] = np.asarray(momentum, dtype)
            own = on_host(leaf) if weight != 1 else None
            self._leaves[index] = like(leaf, mixed(agreed[index], own, weight))
        if weight == 1:
            self.outer["agreed_at"][number] = self.outer["step"]
        self.outer["arrived"].pop(number, None)

    def result(self) -> tuple[Any, OuterState]:
        """Parameters in their structure, and the outer state."""
        return self._structure.unflatten(self._leaves), self.outer


def on_host(leaf: Any) -> Array:
    """A copy in the dtype of the outer state: float32 at least, for half precision."""
    return np.array(leaf, np.float64 if leaf.dtype == np.float64 else np.float32)


def keeping(arrays: Sequence[Array]) -> Any:
    """A context in which JAX keeps float64 if an array has it, though the program has it off."""
    if all(array.dtype != np.float64 for array in arrays):
        return nullcontext()
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # its place in older versions

    return enable_x64(True)


def like(leaf: Any, value: Array) -> Any:
    """A value of the outer state as the parameter that ``leaf`` was."""
    array = np.asarray(value).astype(leaf.dtype)
    return jax.device_put(array, leaf.sharding) if isinstance(leaf, jax.Array) else array


def check_outer(title: str, params: Any, outer: Any) -> None:
    """``ValueError`` for what is no outer state, and inside of ``jit``."""
    if not isinstance(outer, Mapping) or "agreed_at" not in outer:
        raise ValueError(
            f"{title}: outer must be what begin() or sync() returned, found "
            f"{type(outer).__name__}; sync returns (params, outer)"
        )
    check_outside(title, (params, outer["step"]))


def check_outside(title: str, tree: Any) -> None:
    """``ValueError`` inside of ``jit``, where a call would run once and not in each step."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(tree)):
        raise ValueError(f"{title}: call it outside of jit, between inner steps")


def check_shapes(title: str, leaves: list[Any], outer: OuterState) -> None:
    """``ValueError`` for parameters of other shapes than the agreed ones."""
    check_outer(title, leaves, outer)
    found = [np.shape(leaf) for leaf in leaves]
    expected = [array.shape for array in outer["agreed"]]
    if found != expected:
        raise ValueError(
            f"{title}: params have {len(found)} arrays of shapes {found}, the outer state has "
            f"{len(expected)} of {expected}"
        )
