"""The arguments of ``DistributedOptimizer``, checked once for all fronts and backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from horovod._keras.library import variable_key
from horovod.core.gradient_groups import Groups, check_groups
from horovod.core.operations import Adasum, Average, Sum, check_predivide
from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set

__all__ = ["Options", "make_options"]


@dataclass(frozen=True)
class Options:
    """How gradients are reduced; equal on all ranks. Meanings as in ``DistributedOptimizer``."""

    name: str | None
    device_dense: str
    device_sparse: str
    compression: Any
    sparse_as_dense: bool
    op: int
    gradient_predivide_factor: float
    backward_passes_per_step: int
    average_aggregated_gradients: bool
    groups: Groups
    process_set: ProcessSet
    scale_local_gradients: bool


def make_options(
    *,
    compression: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Options:
    """Check the arguments of a front's ``DistributedOptimizer``.

    Raises:
        ValueError: one of them is unusable.
    """
    _check_op(op, gradient_predivide_factor)
    if backward_passes_per_step < 1:
        raise ValueError(
            f"backward_passes_per_step must be at least 1, found {backward_passes_per_step}"
        )
    if not hasattr(compression, "compress") and not hasattr(compression, "make_exchange"):
        raise ValueError(f"compression must be a Compressor, found {compression!r}")
    check_process_set(process_set)
    return Options(
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        backward_passes_per_step,
        average_aggregated_gradients,
        check_groups(groups, num_groups, variable_key),
        process_set,
        scale_local_gradients,
    )


def _check_op(op: int, gradient_predivide_factor: float) -> None:
    if op == Adasum:
        raise ValueError("op=Adasum is not supported for Keras optimizers; use Average or Sum")
    if op not in (Average, Sum):
        raise ValueError(f"op must be Average or Sum, found {op!r}")
    check_predivide(op, gradient_predivide_factor)
