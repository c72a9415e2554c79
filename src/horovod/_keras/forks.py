"""The functions that forks of the original's Keras modules call, under their original names.

A fork passes the Keras module or its ``keras.backend`` with each call. ``horovod._keras`` has these
names and imports this module when one is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horovod._keras import loading
from horovod._keras.api import KerasApi
from horovod._keras.library import is_keras3, keras_of
from horovod._keras.optimizer import copy_state, distribute
from horovod._keras.options import Options
from horovod.core.operations import Average


def create_distributed_optimizer(
    keras: Any, optimizer: Any, name: str | None, *args: Any, **kwargs: Any
) -> Any:
    """``DistributedOptimizer`` for any Keras; the arguments are the fields of ``Options``."""
    return distribute(keras, optimizer, Options(name, *args, **kwargs))


def broadcast_global_variables(backend: Any, root_rank: int) -> None:
    """Give all ranks the root's TF1 global variables."""
    KerasApi(keras_of(backend)).broadcast_global_variables(root_rank)


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
    return KerasApi(keras_of(backend)).allreduce(value, name, average, *factors, op, compression)


def allgather(backend: Any, value: Any, name: str | None) -> Any:
    """The values of all ranks joined along the first dimension."""
    return KerasApi(keras_of(backend)).allgather(value, name)


def broadcast(backend: Any, value: Any, root_rank: int, name: str | None) -> Any:
    """The value of ``root_rank``."""
    return KerasApi(keras_of(backend)).broadcast(value, root_rank, name)


def reducescatter(backend: Any, value: Any, name: str | None, op: int = Average) -> Any:
    """This rank's rows of the reduced value."""
    return KerasApi(keras_of(backend)).reducescatter(value, name, op)


def load_model(
    keras: Any,
    wrap_optimizer: Callable[[Callable[..., Any]], Callable[..., Any]],
    optimizer_modules: Sequence[str] | set[str],
    filepath: Any,
    custom_optimizers: Sequence[type] | None,
    custom_objects: dict[str, Any] | None,
) -> Any:
    """A saved model with its optimizer, wrapped by the caller, in the saved state.

    Args:
        wrap_optimizer: takes a function that makes an optimizer and returns one that makes a
            distributed optimizer.
        optimizer_modules: has no effect; optimizer classes of all modules are found.
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
