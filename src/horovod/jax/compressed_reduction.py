"""Reductions in which some gradients travel as less than they are, with error feedback.

A step whose results are not finite, which a transformation such as ``optax.apply_if_finite`` leaves
out, does not change what is remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from horovod.core.compression import ExactCompressor
from horovod.core.operations import check_summing
from horovod.jax.collectives import allreduce_batch
from horovod.jax.gradient_reduction import GradientReduction


@runtime_checkable
class TransformationCompressor(Protocol):
    """A compressor that needs more than one reduction, or keeps something per gradient."""

    def distribute(
        self, inner: Any, reduction: tuple[Any, ...]
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The functions ``init`` and ``update`` of ``inner`` on the gradients of all ranks.

        Args:
            inner: a transformation; takes extra arguments.
            reduction: the arguments of ``GradientReduction``.

        Raises:
            ValueError: this compressor cannot reduce with this op.
        """


@dataclass(frozen=True)
class CompressedReduction(GradientReduction):
    """Base of these reductions; ``compression`` is a ``FeedbackCompressor``.

    Gradients with an error travel compressed, all others exactly.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        check_summing(self.op, self.compression.title)

    def corrected(self, gradient: Any, error: Any) -> Any:
        """A gradient with what was left out of the last one, in the error's dtype."""
        return gradient.astype(error.dtype) + error

    def reduce(self, gradients: Any, errors: dict[str, Any]) -> Any:
        """As of every reduction; what is remembered changes only if all results are finite."""
        memories = self._memories(errors)
        before = [dict(memory) for memory in memories]
        reduced = super().reduce(gradients, errors)
        is_finite = _all_finite(reduced)
        for memory, old in zip(memories, before, strict=True):
            memory.update({path: jnp.where(is_finite, memory[path], old[path]) for path in old})
        return reduced

    def exchange(
        self, arrays: list[Any], name: str, paths: list[str], errors: dict[str, Any]
    ) -> list[Any]:
        """These arrays, reduced: those without an error in one operation, the others compressed."""
        results: dict[str, Any] = {}
        array_of = dict(zip(paths, arrays, strict=True))
        plain = [path for path in paths if path not in errors]
        if plain:
            results.update(self._allreduce(name, {path: array_of[path] for path in plain}))
        compressed = {path: array_of[path] for path in paths if path in errors}
        if compressed:
            results.update(self._send(name, compressed, errors))
        return [results[path] for path in paths]

    def _send(self, name: str, arrays: dict[str, Any], errors: dict[str, Any]) -> dict[str, Any]:
        """These arrays by path, reduced; puts what is left out of them into ``errors``."""
        raise NotImplementedError

    def _memories(self, errors: dict[str, Any]) -> list[dict[str, Any]]:
        """What is remembered, each by path."""
        return [errors]

    def _allreduce(
        self, name: str, arrays: dict[str, Any], operation: tuple[int, float, float] | None = None
    ) -> dict[str, Any]:
        """Reduce in one operation and exactly; with another operation than this one's if given."""
        operation = operation or (self.op, *self.factors)
        args = (*operation, ExactCompressor, self.process_set, True)
        reduced = allreduce_batch(list(arrays.values()), [name, *arrays], *args)
        return dict(zip(arrays, reduced, strict=True))


def _all_finite(tree: Any) -> Any:
    leaves = jax.tree_util.tree_leaves(tree)
    checks = [jnp.all(jnp.isfinite(leaf)) for leaf in leaves]
    return reduce(jnp.logical_and, checks, jnp.bool_(True))
