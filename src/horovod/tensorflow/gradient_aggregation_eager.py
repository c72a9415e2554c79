"""The import path for local aggregation when executing eagerly; one class does both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper


class LocalGradientAggregationHelperEager(LocalGradientAggregationHelper):
    """``LocalGradientAggregationHelper`` without the arguments that only graphs used."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], list[Any]],
        sparse_as_dense: bool = False,
        average_aggregated_gradients: bool = False,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
