"""How the gradients of a pytree are reduced: as one operation, or as groups of them.

In ``CompressedReduction`` some gradients travel as less than they are, with error feedback. A step
whose results are not finite, which a transformation such as ``optax.apply_if_finite`` leaves out,
does not change what is remembered.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce, wraps
from itertools import compress
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from horovod.core.compression import ExactCompressor, compression_text
from horovod.core.gradient_groups import BATCH_BYTES, GPU_BATCH_BYTES, batches_of, split_into_groups
from horovod.core.operations import check_predivide, check_summing, resolve_op
from horovod.core.process_sets import ProcessSet, check_process_set
from horovod.core.world import engine, has_others, has_spare_cores
from horovod.jax.collectives import Reduction, allreduce_batch, allreduce_group

Groups = int | Sequence[Sequence[str]] | None


@dataclass(frozen=True)
class GradientReduction:
    """How gradients are reduced; equal on all ranks. Meanings as in ``DistributedOptimizer``."""

    name: str
    compression: Any
    op: int
    gradient_predivide_factor: float
    groups: Groups
    process_set: ProcessSet

    def __post_init__(self) -> None:
        object.__setattr__(self, "op", resolve_op(None, self.op))
        check_predivide(self.op, self.gradient_predivide_factor)
        check_process_set(self.process_set)

    def __call__(self, gradients: Any) -> Any:
        """The reduced gradients, in the same structure; this rank's own where it has no others."""
        return self.reduce(gradients, {})

    def reduce(self, gradients: Any, errors: dict[str, Any]) -> Any:
        """The same for gradients to which ``errors`` have been added.

        Args:
            gradients: of this rank.
            errors: by path; what the reduction leaves out takes their places.

        Raises:
            ValueError: the ranks step alone here.
        """
        if title := _steps_alone.get():
            raise already_distributed(title)
        if not has_others(self.process_set):
            errors.update(jax.tree_util.tree_map(jnp.zeros_like, errors))
            return gradients
        found, structure = jax.tree_util.tree_flatten_with_path(gradients)
        paths = [jax.tree_util.keystr(path) for path, _ in found]
        leaves = [leaf for _, leaf in found]
        groups, others = _split(self.groups, paths)
        batches = _batches(others, leaves)
        named = [(f"{self.name}.group{paths[group[0]]}", group) for group in groups]
        named += [(f"{self.name}.batch{paths[batch[0]]}", batch) for batch in batches]
        # A call of a program succeeds or fails whole anyway, and one operation for all of its
        # gradients costs less than one for each.
        for name, positions in named:
            reduced = self.exchange(name, {paths[p]: leaves[p] for p in positions}, errors)
            for position in positions:
                leaves[position] = reduced[paths[position]]
        return structure.unflatten(leaves)

    def exchange(self, name: str, arrays: dict[str, Any], errors: dict[str, Any]) -> dict[str, Any]:
        """These arrays by path, reduced in one operation; errors as in ``reduce``."""
        given, names = list(arrays.values()), [name, *arrays]
        keeps = [path in errors for path in arrays]
        if any(keeps):
            results, found = allreduce_group(given, names, self.how, keeps)
            errors.update(zip(compress(arrays, keeps), found, strict=True))
        else:
            results = allreduce_batch(given, names, self.how, is_group=True)
        return dict(zip(arrays, results, strict=True))

    def first_error(self, path: str, leaf: Any) -> Any:
        """Zeros for what is left out of a gradient like ``leaf``; None: nothing is."""
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        is_coded = is_float and not engine().is_exact(path, leaf.size)
        return jnp.zeros(leaf.shape, jnp.float32) if is_coded else None

    def corrected(self, gradient: Any, error: Any) -> Any:
        """A gradient with what was left out of the last one, in the dtype that is sent."""
        return gradient + error.astype(gradient.dtype)

    @property
    def how(self) -> Reduction:
        """As the collectives take it."""
        return Reduction(self.op, *self.factors, self.compression, self.process_set)

    @property
    def factors(self) -> tuple[float, float]:
        """What multiplies gradients before and after the sum."""
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor


_SETTINGS = "compression"  # beside the paths of gradients
_MOST_CODES = 1 << 30

# The title of local steps whose inner update is under way.
_steps_alone: ContextVar[str] = ContextVar("_steps_alone", default="")


def alone(title: str, update: Callable[..., Any]) -> Callable[..., Any]:
    """The update of a transformation of which no part may reduce, else it is a ``ValueError``."""

    @wraps(update)
    def update_alone(*args: Any, **extra: Any) -> Any:
        token = _steps_alone.set(title)
        try:
            return update(*args, **extra)
        finally:
            _steps_alone.reset(token)

    return update_alone


def already_distributed(title: str) -> ValueError:
    """For an optimizer that ``title`` cannot wrap, or that has such a part."""
    return ValueError(f"{title}: this optimizer is distributed already; give that of optax itself")


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

    def exchange(self, name: str, arrays: dict[str, Any], errors: dict[str, Any]) -> dict[str, Any]:
        """These arrays, reduced: those without an error exactly, the others compressed."""
        plain = {path: array for path, array in arrays.items() if path not in errors}
        compressed = {path: array for path, array in arrays.items() if path in errors}
        if not compressed:
            return self._allreduce(name, plain)
        return self._send(name, plain, compressed, errors)

    def _send(
        self, name: str, plain: dict[str, Any], arrays: dict[str, Any], errors: dict[str, Any]
    ) -> dict[str, Any]:
        """All arrays by path, reduced; puts what is left out of ``arrays`` into ``errors``.

        The first operation is ``_allreduce_first``. All others need a result of it, else they would
        wait for ranks that compress differently.
        """
        raise NotImplementedError

    def _allreduce_first(self, name: str, arrays: dict[str, Any]) -> dict[str, Any]:
        """``_allreduce`` under the name that it has without compression, with the settings.

        These are no bytes, in a shape that no other settings have: the engine refuses ranks that
        compress differently.
        """
        code = zlib.crc32(compression_text(self.compression).encode()) % _MOST_CODES
        results = self._allreduce(name, {**arrays, _SETTINGS: jnp.empty((0, code), jnp.float32)})
        del results[_SETTINGS]
        return results

    def _memories(self, errors: dict[str, Any]) -> list[dict[str, Any]]:
        """What is remembered, each by path."""
        return [errors]

    def _allreduce(self, name: str, arrays: dict[str, Any]) -> dict[str, Any]:
        """Reduce in one operation and exactly."""
        how = self.how._replace(compression=ExactCompressor)
        reduced = allreduce_batch(list(arrays.values()), [name, *arrays], how, is_group=True)
        return dict(zip(arrays, reduced, strict=True))


def _all_finite(tree: Any) -> Any:
    leaves = jax.tree_util.tree_leaves(tree)
    checks = [jnp.all(jnp.isfinite(leaf)) for leaf in leaves]
    return reduce(jnp.logical_and, checks, jnp.bool_(True))


def check_groups(groups: Any) -> Groups:
    """``groups`` as a number > 0 or lists of paths; None if nothing is grouped.

    Raises:
        ValueError: it is neither, or a path is in two groups.
    """
    if groups is None or groups == 0:
        return None
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        return groups
    if isinstance(groups, list | tuple) and all(
        isinstance(group, list | tuple) for group in groups
    ):
        paths = [path for group in groups for path in group]
        if all(isinstance(path, str) for path in paths) and len(set(paths)) == len(paths):
            return tuple(tuple(group) for group in groups)
    raise ValueError(
        "groups must be a number > 0 or lists of paths as of jax.tree_util.keystr, each in one "
        f"group only, found {groups!r}"
    )


def _split(groups: Groups, paths: list[str]) -> tuple[list[list[int]], list[int]]:
    """Positions in the groups that were asked for, none of which is empty, and all others."""
    listed = [] if groups is None or isinstance(groups, int) else groups
    known = set(paths)
    unknown = [path for group in listed for path in group if path not in known]
    if unknown:
        raise ValueError(f"groups: there is no gradient {unknown[0]!r}; there are {paths}")
    return split_into_groups(groups, dict(enumerate(paths)), str)


def _batches(positions: list[int], leaves: list[Any]) -> list[list[int]]:
    """Into how many calls of a program the gradients go."""
    is_on_gpu = jax.default_backend() == "gpu"
    if not positions or not (is_on_gpu or has_spare_cores()):
        return [positions] if positions else []
    chosen = [leaves[position] for position in positions]
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in chosen]
    limit_bytes = GPU_BATCH_BYTES if is_on_gpu else BATCH_BYTES
    return [positions[batch] for batch in batches_of(sizes, limit_bytes)]
