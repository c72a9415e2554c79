"""What depends on the Keras in use: its generation, its backend, our classes for it, variables.

Values of variables are NumPy arrays, the same for all backends; TF1 graphs use the Keras session. A
broadcast starts the operations of all variables, then waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod.core import world
from horovod.core.handles import wait_for_all
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.elastic.state import inner_optimizers, variables_of
from horovod.numpy import adapter
from horovod.numpy.objects import allgather_object

_BACKENDS = ("tensorflow", "torch", "jax")


def is_keras3(keras: Any) -> bool:
    """Whether ``keras`` is Keras 3, which brings its own operations for all backends."""
    return hasattr(keras, "ops")


def backend_name(keras: Any) -> str:
    """``"tensorflow"``, ``"torch"`` or ``"jax"``; the other backends of Keras 3 cannot train."""
    return str(keras.backend.backend()) if is_keras3(keras) else "tensorflow"


def is_legacy_optimizer(keras: Any, optimizer: Any) -> bool:
    """Whether this is one of Keras 2's older kind of optimizers."""
    if is_keras3(keras):
        return False
    return isinstance(optimizer, keras.optimizers.legacy.Optimizer)


def base_optimizers(keras: Any) -> tuple[type, ...]:
    """The classes that every optimizer of this Keras derives from."""
    found = [keras.optimizers.Optimizer]
    if not is_keras3(keras):
        found.append(keras.optimizers.legacy.Optimizer)
        scaler = getattr(keras.mixed_precision, "LossScaleOptimizer", None)
        if scaler is not None:  # it acts as an optimizer but derives from neither class
            found.append(scaler)
    return tuple(found)


def innermost(optimizer: Any) -> Any:
    """The optimizer that knows the variables; in older versions of Keras 3 no other one does."""
    *_, last = inner_optimizers(optimizer)
    return last


def trained_variables(optimizer: Any, unknown: Sequence[Any] = ()) -> Sequence[Any]:
    """What an optimizer of Keras 3 was built with; ``unknown`` if it was not."""
    found: Sequence[Any] = getattr(innermost(optimizer), "_trainable_variables", unknown)
    return found


def step_counter(optimizer: Any) -> Any:
    """The variable in which an optimizer of Keras 3 counts the calls of ``apply``.

    Newer versions have it in ``_iterations``, as their ``iterations`` may be a quotient of it.
    """
    if hasattr(optimizer, "_iterations"):
        return optimizer._iterations
    return optimizer.iterations


def variable_key(variable: Any) -> int:
    """An identity of a variable; a Keras 3 variable and the TensorFlow variable in it share one.

    Scripts may hold either, and a Keras 3 variable has no ``ref``.
    """
    inner = getattr(variable, "_value", None)
    return id(inner if hasattr(inner, "assign") else variable)


def backend_for(keras: Any) -> Any:
    """Our module for this Keras's backend, imported when it is first needed.

    Raises:
        ValueError: the backend cannot train.
    """
    name = backend_name(keras)
    if name not in _BACKENDS:
        raise ValueError(
            f"horovod.keras works with the backends {', '.join(_BACKENDS)}; KERAS_BACKEND is {name}"
        )
    return import_module(f"horovod._keras.backend_{name}")


def with_base(ours: type, base: type, keras: Any, module: str) -> Any:
    """A class of the same name that is also a ``base``; ``module`` is its import path."""
    namespace = {"__module__": module, "__doc__": ours.__doc__, "_keras": keras}
    bases = (ours,) if issubclass(ours, base) else (ours, base)
    return type(ours.__name__, bases, namespace)


def with_backend(ours: type) -> Any:
    """A class ``<name>Impl`` whose first argument is a ``keras.backend`` module.

    Forks of the original's Keras modules derive from it and from a base of their Keras.
    """

    def __init__(self: Any, backend: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        self._keras = keras_of(backend)
        super(made, self).__init__(*args, **kwargs)

    name = f"{ours.__name__}Impl"
    namespace = {"__module__": ours.__module__, "__doc__": ours.__doc__, "__init__": __init__}
    made: Any = type(name, (ours,), namespace)
    return made


def keras_of(backend: Any) -> Any:
    """The Keras module that has this ``backend`` module."""
    return import_module(backend.__name__.rpartition(".")[0])


Array = NDArray[Any]


def attach_state(model: Any) -> None:
    """Give the variables of a model in training their current values, so they can be changed.

    Between two steps of ``fit`` on JAX the values are not in the variables.
    """
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()


def optimizer_variables(optimizer: Any) -> list[Any]:
    """All state of an optimizer that is the same on all ranks.

    Without this rank's sums of gradients, and its part of a state that ranks share.
    """
    own: set[int] = set()
    for inner in inner_optimizers(optimizer):
        aggregation = getattr(inner, "_hvd_aggregation", None)
        own.update(id(variable) for variable in getattr(aggregation, "variables", ()))
        own.update(getattr(getattr(inner, "_hvd_shares", None), "shapes", ()))
    return [variable for variable in variables_of(optimizer) if id(variable) not in own]


def read_values(keras: Any, variables: Sequence[Any]) -> list[Array]:
    """Copies of the values, of any shapes and dtypes."""
    if is_keras3(keras):
        return [np.array(keras.ops.convert_to_numpy(v), order="C") for v in variables]
    values = keras.backend.batch_get_value(list(variables))
    return [np.array(value, order="C") for value in values]


def assign_values(keras: Any, variables: Sequence[Any], values: Sequence[Array]) -> None:
    """The reverse of ``read_values``."""
    if is_keras3(keras):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    else:
        keras.backend.batch_set_value(list(zip(variables, values, strict=True)))


def broadcast_variables(
    keras: Any,
    variables: Sequence[Any],
    root_rank: int,
    name: str,
    excluded: Sequence[Any] = (),
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite variables on all ranks with the root's; blocks until all ranks call it.

    Args:
        keras: the Keras module of the variables.
        variables: of the same shapes and dtypes, in the same order, on every rank.
        root_rank: the rank whose values all ranks get; the same on every rank.
        name: the beginning of operation names; the same on every rank.
        excluded: variables that stay as they are; the same on every rank.
        process_set: the participating ranks, which include this process and the root.

    Raises:
        ValueError: ranks have different variables (raised on all ranks), or there is no such root.
        HorovodInternalError: a rank was lost.
    """
    if process_set.size() == 1:
        return
    kept = {variable_key(variable) for variable in excluded}
    sent = [variable for variable in variables if variable_key(variable) not in kept]
    _check_agreement(sent, name, process_set)
    values = read_values(keras, sent)
    started = (
        adapter.broadcast_async_(_wire_array(value), root_rank, f"{name}.{number}", process_set)
        for number, value in enumerate(values)
    )
    wait_for_all(started, adapter.synchronize)
    if world.rank() != root_rank:
        assign_values(keras, sent, values)


def _check_agreement(variables: Sequence[Any], name: str, process_set: ProcessSet) -> None:
    mine = [(str(variable.shape), str(variable.dtype)) for variable in variables]
    found = allgather_object(mine, f"{name}.layout", process_set)
    ranks = process_set.ranks or []
    for other, number in zip(found, ranks, strict=True):
        if other != found[0]:
            same = zip(other, found[0], strict=False)
            position = next(
                (i for i, (a, b) in enumerate(same) if a != b), len(min(found, key=len))
            )
            raise ValueError(
                f"{name}: rank {number} has {len(other)} variables, rank {ranks[0]} "
                f"{len(found[0])}, and they differ from number {position} on; all ranks need the "
                "same model and optimizer, built alike"
            )


def _wire_array(value: Array) -> Array:
    """The array's memory, as bytes if the engine does not know its dtype."""
    if value.dtype in adapter.DTYPES:
        return value
    return value.reshape(-1).view(np.uint8)
