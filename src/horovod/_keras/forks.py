"""What forks of the original's Keras modules call, under the names that it has there.

They hand over the Keras module or its ``keras.backend`` with each call; all else is as in the
fronts, whose code this leads to. ``horovod._keras`` has these names, and imports this when one is
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horovod._keras import collectives, loading
from horovod._keras.bases import keras_of
from horovod._keras.front import Front
from horovod._keras.library import is_keras3
from horovod._keras.optimizer import copy_state
from horovod.core.gradient_groups import Groups
from horovod.core.operations import Average
from horovod.core.process_sets import ProcessSet, global_process_set

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "create_distributed_optimizer",
    "load_model",
    "reducescatter",
]


def create_distributed_optimizer(
    keras: Any,
    optimizer: Any,
    name: str | None,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    op: int,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """``DistributedOptimizer`` for any Keras."""
    return Front(keras).DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def broadcast_global_variables(backend: Any, root_rank: int) -> None:
    """Give all ranks the root's TF1 global variables."""
    Front(keras_of(backend)).broadcast_global_variables(root_rank)


def allreduce(
    backend: Any,
    value: Any,
    name: str | None,
    average: bool | None,
    prescale_factor: float,
    postscale_factor: float,
    op: int | None,
    compression: Any,
) -> Any:
    """A value reduced over all ranks."""
    factors = (prescale_factor, postscale_factor)
    return collectives.allreduce(keras_of(backend), value, name, average, *factors, op, compression)


def allgather(backend: Any, value: Any, name: str | None) -> Any:
    """The values of all ranks joined along the first dimension."""
    return collectives.allgather(keras_of(backend), value, name)


def broadcast(backend: Any, value: Any, root_rank: int, name: str | None) -> Any:
    """The value of ``root_rank``."""
    return collectives.broadcast(keras_of(backend), value, root_rank, name)


def reducescatter(backend: Any, value: Any, name: str | None, op: int = Average) -> Any:
    """This rank's rows of the reduced value."""
    return collectives.reducescatter(keras_of(backend), value, name, op)


def load_model(
    keras: Any,
    wrap_optimizer: Callable[[Callable[..., Any]], Callable[..., Any]],
    optimizer_modules: Sequence[str] | set[str],
    filepath: Any,
    custom_optimizers: Sequence[type] | None,
    custom_objects: dict[str, Any] | None,
) -> Any:
    """A saved model with its optimizer, wrapped by the caller, in the state it was saved in.

    Args:
        wrap_optimizer: gets what makes an optimizer, and returns what makes a distributed one.
        optimizer_modules: accepted; optimizer classes are found wherever they are.
    """

    def distribute(optimizer: Any) -> Any:
        make = wrap_optimizer(lambda **config: type(optimizer).from_config(config))
        made = make(**optimizer.get_config())
        if is_keras3(keras):
            copy_state(optimizer, made, getattr(optimizer, "_trainable_variables", ()))
        return made

    return loading.load_model(
        keras, filepath, custom_optimizers, custom_objects, distribute, legacy_opts=False
    )
