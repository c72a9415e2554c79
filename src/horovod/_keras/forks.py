"""The functions that forks of the original's Keras modules call, under their original names.

A fork passes the Keras module or its ``keras.backend`` with each call. ``horovod._keras`` has these
names and imports this module when one is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horovod._keras import optimizer as optimizers
from horovod._keras.api import KerasApi
from horovod._keras.library import is_keras3, keras_of, trained_variables
from horovod._keras.optimizer import copy_state, distribute
from horovod._keras.reducer import Options


def create_distributed_optimizer(
    keras: Any, optimizer: Any, name: str | None, *args: Any, **kwargs: Any
) -> Any:
    """``DistributedOptimizer`` for any Keras; the arguments are the fields of ``Options``."""
    return distribute(keras, optimizer, Options(name, *args, **kwargs))


def _with_backend(name: str) -> Callable[..., Any]:
    def call(backend: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(KerasApi(keras_of(backend)), name)(*args, **kwargs)

    call.__name__, call.__doc__ = name, f"``KerasApi.{name}`` after a ``keras.backend`` module."
    return call


broadcast_global_variables = _with_backend("broadcast_global_variables")
allreduce = _with_backend("allreduce")
allgather = _with_backend("allgather")
broadcast = _with_backend("broadcast")
reducescatter = _with_backend("reducescatter")


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
            copy_state(optimizer, made, trained_variables(optimizer))
        return made

    return optimizers.load_model(
        keras, filepath, custom_optimizers, custom_objects, distribute, legacy_opts=False
    )
