"""The arguments of ``DistributedOptimizer``, checked once for all Keras modules and backends."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Any

from horovod._keras.library import variable_key
from horovod.core.compression import NoneCompressor
from horovod.core.gradient_groups import Groups, check_groups
from horovod.core.operations import Adasum, Average, Sum, check_predivide
from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set


@dataclass(frozen=True)
class Options:
    """How gradients are reduced; equal on all ranks. Meanings as in ``DistributedOptimizer``.

    Raises:
        ValueError: an argument is unusable.
    """

    name: str | None = None
    device_dense: str = ""
    device_sparse: str = ""
    compression: Any = NoneCompressor
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    op: int = Average
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    groups: Groups = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    num_groups: InitVar[int] = 0

    def __post_init__(self, num_groups: int) -> None:
        if self.op == Adasum:
            raise ValueError("op=Adasum is not supported for Keras optimizers; use Average or Sum")
        if self.op not in (Average, Sum):
            raise ValueError(f"op must be Average or Sum, found {self.op!r}")
        check_predivide(self.op, self.gradient_predivide_factor)
        passes = self.backward_passes_per_step
        if passes < 1:
            raise ValueError(f"backward_passes_per_step must be at least 1, found {passes}")
        kind = self.compression
        if not hasattr(kind, "compress") and not hasattr(kind, "make_exchange"):
            raise ValueError(f"compression must be a Compressor, found {kind!r}")
        check_process_set(self.process_set)
        groups = check_groups(self.groups, num_groups, variable_key)
        object.__setattr__(self, "groups", groups)
