"""``load_model``: a saved model whose optimizer is distributed, with its state."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod._keras.library import inner_optimizers, is_keras3, is_legacy_optimizer
from horovod._keras.optimizer_class import DistributedOptimizerMixin
from horovod._keras.variables import assign_values, optimizer_variables, read_values

_GROUP, _NAMES = "optimizer_weights", "weight_names"

# Makes a distributed optimizer from a plain one.
Distribute = Callable[[Any], Any]


def load_model(
    keras: Any,
    filepath: Any,
    custom_optimizers: Sequence[type] | None,
    custom_objects: dict[str, Any] | None,
    distribute: Distribute,
    legacy_opts: bool,
) -> Any:
    """Load as Keras does, then ``distribute`` the optimizer; see ``KerasApi.load_model``.

    Keras cannot load the optimizer as a distributed one: Keras 3 looks up its own classes by their
    full names and does not look for them in ``custom_objects``.
    """
    objects = {
        **_optimizer_classes(keras, legacy_opts),
        **{kind.__name__: kind for kind in custom_optimizers or ()},
        **(custom_objects or {}),
    }
    model = keras.models.load_model(filepath, custom_objects=objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or any(
        isinstance(found, DistributedOptimizerMixin) for found in inner_optimizers(optimizer)
    ):
        return model
    distribute_loaded = _distribute_in_keras3 if is_keras3(keras) else _distribute_in_keras2
    model.optimizer = distribute_loaded(keras, model, optimizer, distribute)
    if is_keras3(keras):
        _restore_from_hdf5(keras, model, filepath)
    model.train_function = None
    saved_config: Any = getattr(model, "_compile_config", None)
    if hasattr(saved_config, "config"):  # Keras 3 saves the optimizer from it
        saved_config.config["optimizer"] = model.optimizer
    return model


def _optimizer_classes(keras: Any, legacy_opts: bool) -> dict[str, type]:
    """The optimizer classes of this process other than Keras's; each under two names."""
    is_legacy = legacy_opts and not is_keras3(keras)
    base: type = keras.optimizers.legacy.Optimizer if is_legacy else keras.optimizers.Optimizer
    found: dict[str, type] = {}
    for kind in _subclasses(base):
        is_own = issubclass(kind, DistributedOptimizerMixin) or hasattr(
            keras.optimizers, kind.__name__
        )
        if not is_own:
            found[kind.__name__] = found[kind.__name__.lower()] = kind
    return found


def _subclasses(base: type) -> Iterator[type]:
    kinds: list[type] = base.__subclasses__()
    for kind in kinds:
        yield kind
        yield from _subclasses(kind)


def _distribute_in_keras3(keras: Any, model: Any, optimizer: Any, distribute: Distribute) -> Any:
    variables = model.trainable_variables
    if len(getattr(optimizer, "_trainable_variables", variables)) == len(variables):
        return distribute(optimizer)
    # Keras builds the optimizer of an HDF5 file without variables.
    optimizer.built = False
    distributed = distribute(optimizer)
    distributed.build(variables)
    return distributed


def _restore_from_hdf5(keras: Any, model: Any, filepath: Any) -> None:
    """Give the optimizer the state in an HDF5 file; Keras loads other formats in full."""
    values = read_optimizer_values(filepath)
    variables = optimizer_variables(model.optimizer)
    if [value.shape for value in values] == [tuple(v.shape) for v in variables]:
        assign_values(keras, variables, values)


def _distribute_in_keras2(keras: Any, model: Any, optimizer: Any, distribute: Distribute) -> Any:
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return type(optimizer)(
            _distribute_in_keras2(keras, model, inner, distribute),
            dynamic=optimizer.dynamic,
            initial_scale=float(keras.backend.get_value(optimizer.loss_scale)),
            dynamic_growth_steps=optimizer.dynamic_growth_steps if optimizer.dynamic else None,
        )
    distributed = distribute(optimizer)
    if is_legacy_optimizer(keras, optimizer):
        distributed._create_all_weights(model.trainable_variables)
    else:
        distributed.build(model.trainable_variables)
    values = read_values(keras, optimizer_variables(optimizer))
    variables = optimizer_variables(distributed)
    if len(values) == len(variables):  # else the file had no state
        assign_values(keras, variables, values)
    return distributed


def read_optimizer_values(filepath: Any) -> list[NDArray[Any]]:
    """The values of an optimizer's variables in an HDF5 file; empty if it has none.

    Keras 3 writes them, but builds the optimizer of such a file before it knows the model's
    variables, and so loses them.
    """
    if not str(filepath).endswith((".h5", ".hdf5")) or not os.path.isfile(filepath):
        return []
    import h5py

    with h5py.File(filepath, "r") as file:
        if _GROUP not in file:
            return []
        group = file[_GROUP]
        return [np.asarray(group[name]) for name in _names_of(group.attrs)]


def _names_of(attributes: Any) -> list[Any]:
    """The names in one attribute, or in several numbered ones if one would be too long."""
    parts = [_NAMES] if _NAMES in attributes else []
    while f"{_NAMES}{len(parts)}" in attributes:
        parts.append(f"{_NAMES}{len(parts)}")
    names = [name for part in parts for name in attributes[part]]
    return [name.decode() if isinstance(name, bytes) else name for name in names]
