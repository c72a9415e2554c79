"""PowerSGD: gradients as products of two thin matrices, with error feedback.

The same steps as in ``horovod.torch.powersgd``, in which they are explained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from horovod.core.compression import ExactCompressor, PowerSGDCompressor
from horovod.core.world import rank
from horovod.jax.error_feedback import check_state, first_errors, own_errors, reduce_corrected
from horovod.jax.gradient_reduction import CompressedReduction, GradientReduction


class PowerSGD(PowerSGDCompressor):
    """Low-rank compression with error feedback, for ``DistributedOptimizer`` only.

    A gradient ``[n, ...]`` is seen as a matrix ``[n, m]``; ``rank * (n + m)`` numbers travel in
    place of ``n * m``. Vectors, small matrices and integers travel as they are. The optimizer's
    state is a ``PowerSGDState``. Options and errors are those of
    ``horovod.core.compression.PowerSGDCompressor``.
    """

    def distribute(
        self, inner: Any, reduction: tuple[Any, ...]
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """``init`` and ``update`` of ``inner``; ``op`` Average or Sum, else ``ValueError``."""
        name, _, *rest = reduction
        plain = GradientReduction(name, ExactCompressor, *rest)
        return _with_low_rank(inner, PowerSGDReduction(*reduction), plain, self._start_after)


class PowerSGDState(NamedTuple):
    """The state of an optimizer with PowerSGD.

    Attributes:
        rank: whose errors these are, int32; another rank starts without errors.
        steps: how many were made, int32; the same on all ranks.
        errors: what the last step left out, by path as of ``jax.tree_util.keystr``; float32, of
            float64 gradients float64. What is sent exactly has none.
        q: the [columns, rank] matrices that the next step begins with, by path; the same on all
            ranks.
        inner_state: of the wrapped transformation.
    """

    rank: Any
    steps: Any
    errors: dict[str, Any]
    q: dict[str, Any]
    inner_state: Any


@dataclass(frozen=True)
class PowerSGDReduction(CompressedReduction):
    """Reduces the two thin matrices of each large one, in two operations.

    ``q``: of the last step, by path; this step's takes its place.
    """

    q: dict[str, Any] = field(default_factory=dict)

    def first_error(self, path: str, leaf: Any) -> Any:
        """Zeros, float32 or longer; None: the leaf is no matrix that becomes much smaller."""
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        if not is_float or self.compression.matrix_of(leaf.shape) is None:
            return None
        return jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32))

    def first_q(self, path: str, error: Any) -> Any:
        """Random orthonormal columns, the same on every rank."""
        _, columns, approximation = self.compression.matrix_of(error.shape)
        key = jax.random.key(self.compression.seed_of(path))
        return _orthonormal(jax.random.normal(key, (columns, approximation), error.dtype))

    def check_q(self, errors: dict[str, Any]) -> None:
        """Refuse the state of a compressor with another rank.

        Raises:
            ValueError: a q does not fit the error of the same path.
        """
        for path, error in errors.items():
            matrix = self.compression.matrix_of(error.shape)
            found = list(self.q[path].shape) if path in self.q else "none"
            expected = "none" if matrix is None else list(matrix[1:])
            if found != expected or matrix is None:
                raise ValueError(
                    f"DistributedOptimizer: the state of powersgd has errors{path} of shape "
                    f"{list(error.shape)} and q{path} of shape {found}, expected {expected}; make "
                    "it with optimizer.init(params)"
                )

    def _send(
        self, name: str, plain: dict[str, Any], arrays: dict[str, Any], errors: dict[str, Any]
    ) -> dict[str, Any]:
        matrices = {path: array.reshape(len(array), -1) for path, array in arrays.items()}
        products = {path: _product(m, self.q[path]) for path, m in matrices.items()}
        # Sums do as well as means here: only what the columns span matters.
        results = self._allreduce_first(name, plain | products)
        p = {path: _orthonormal(results[path]) for path in arrays}
        own_q = {path: _product(m.T, p[path]) for path, m in matrices.items()}
        q = self._allreduce(f"{name}.powersgd_q", own_q)
        for path, array in arrays.items():
            left = matrices[path] - _product(p[path], own_q[path].T)
            errors[path] = left.reshape(array.shape)
            results[path] = _product(p[path], q[path].T).reshape(array.shape)
            # Orthonormal, so that it neither vanishes nor grows with the gradients.
            self.q[path] = _orthonormal(q[path])
        return results

    def _memories(self, errors: dict[str, Any]) -> list[dict[str, Any]]:
        return [errors, self.q]


def _with_low_rank(
    inner: Any, reduction: PowerSGDReduction, plain: GradientReduction, start_after: int
) -> tuple[Any, Any]:
    """``init`` and ``update`` of a transformation on gradients that are reduced by these."""

    def init(params: Any) -> PowerSGDState:
        errors = first_errors(reduction, params)
        q = {path: reduction.first_q(path, error) for path, error in errors.items()}
        return PowerSGDState(jnp.int32(rank()), jnp.int32(0), errors, q, inner.init(params))

    def compressed(gradients: Any, errors: Any, q: Any) -> tuple[Any, Any, Any]:
        step = replace(reduction, q=dict(q))
        step.check_q(errors)
        errors = dict(errors)
        return reduce_corrected(step, gradients, errors), errors, step.q

    def uncompressed(gradients: Any, errors: Any, q: Any) -> tuple[Any, Any, Any]:
        return plain(gradients), errors, q

    def update(
        gradients: Any, state: PowerSGDState, params: Any = None, **extra: Any
    ) -> tuple[Any, PowerSGDState]:
        check_state(state, PowerSGDState)
        memory = (own_errors(state.errors, state.rank), state.q)
        if start_after:
            is_plain = state.steps < start_after
            found = jax.lax.cond(is_plain, uncompressed, compressed, gradients, *memory)
        else:
            found = compressed(gradients, *memory)
        reduced, errors, q = found
        updates, inner_state = inner.update(reduced, state.inner_state, params, **extra)
        return updates, PowerSGDState(jnp.int32(rank()), state.steps + 1, errors, q, inner_state)

    return init, update


def _product(a: Any, b: Any) -> Any:
    """As exact as the dtype: accelerators would round the factors."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _orthonormal(matrix: Any) -> Any:
    """Orthonormal columns that span at least ``matrix``'s, also where those are dependent or 0."""
    return jnp.linalg.qr(matrix)[0]
