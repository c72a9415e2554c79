"""How the gradients of a pytree are reduced: as one operation, or as groups of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from horovod.core.gradient_groups import BATCH_BYTES, GPU_BATCH_BYTES, batches_of, split_into_groups
from horovod.core.operations import Adasum, Average, Max, Min, Product, Sum, check_predivide
from horovod.core.process_sets import ProcessSet, check_process_set, has_others
from horovod.core.world import engine, has_spare_cores
from horovod.jax.collectives import allreduce_batch, allreduce_group

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
        if self.op not in (Average, Sum, Adasum, Min, Max, Product):
            raise ValueError(f"DistributedOptimizer: unknown op {self.op!r}")
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
        """
        if not has_others(self.process_set):
            errors.update(jax.tree_util.tree_map(jnp.zeros_like, errors))
            return gradients
        found, structure = jax.tree_util.tree_flatten_with_path(gradients)
        paths = [jax.tree_util.keystr(path) for path, _ in found]
        leaves = [leaf for _, leaf in found]
        groups, others = _split(self.groups, paths)
        for group in groups:
            self._reduce(leaves, group, f"{self.name}.group{paths[group[0]]}", paths, errors)
        for batch in _batches(others, leaves):
            self._reduce(leaves, batch, f"{self.name}.batch{paths[batch[0]]}", paths, errors)
        return structure.unflatten(leaves)

    def _reduce(
        self,
        leaves: list[Any],
        positions: list[int],
        name: str,
        paths: list[str],
        errors: dict[str, Any],
    ) -> None:
        # A call of a program succeeds or fails whole anyway, and one operation for all of its
        # gradients costs less than one for each.
        chosen = [leaves[position] for position in positions]
        results = self.exchange(chosen, name, [paths[position] for position in positions], errors)
        for position, reduced in zip(positions, results, strict=True):
            leaves[position] = reduced

    def exchange(
        self, arrays: list[Any], name: str, paths: list[str], errors: dict[str, Any]
    ) -> list[Any]:
        """These arrays, reduced in one operation; their paths, and errors as in ``reduce``."""
        args = (self.op, *self.factors, self.compression, self.process_set)
        kept = [path for path in paths if path in errors]
        if not kept:
            return allreduce_batch(arrays, [name, *paths], *args, True)
        keeps = [path in errors for path in paths]
        results, found = allreduce_group(arrays, [name, *paths], *args, keeps)
        errors.update(zip(kept, found, strict=True))
        return results

    def first_error(self, path: str, leaf: Any) -> Any:
        """Zeros for what is left out of a gradient like ``leaf``; None: nothing is."""
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        is_coded = is_float and not engine().is_exact(path, leaf.size)
        return jnp.zeros(leaf.shape, jnp.float32) if is_coded else None

    def corrected(self, gradient: Any, error: Any) -> Any:
        """A gradient with what was left out of the last one, in the dtype that is sent."""
        return gradient + error.astype(gradient.dtype)

    @property
    def factors(self) -> tuple[float, float]:
        """What multiplies gradients before and after the sum."""
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor


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
    position_of = {path: position for position, path in enumerate(paths)}
    listed = [] if groups is None or isinstance(groups, int) else groups
    unknown = [path for group in listed for path in group if path not in position_of]
    if unknown:
        raise ValueError(f"groups: there is no gradient {unknown[0]!r}; there are {paths}")
    return split_into_groups(groups, position_of, str)


def _batches(positions: list[int], leaves: list[Any]) -> list[list[int]]:
    """Into how many calls of a program the gradients go."""
    is_on_gpu = jax.default_backend() == "gpu"
    if not positions or not (is_on_gpu or has_spare_cores()):
        return [positions] if positions else []
    chosen = [leaves[position] for position in positions]
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in chosen]
    limit_bytes = GPU_BATCH_BYTES if is_on_gpu else BATCH_BYTES
    return [positions[batch] for batch in batches_of(sizes, limit_bytes)]
