"""``DistributedOptimizer``: an optimizer of a new class made from the user's, of the same name.

``fit`` and ``train_on_batch`` of every Keras call ``Model.make_train_function`` right before the
first step. The first distributed optimizer of a process wraps that method, for models that use a
distributed optimizer, and ``apply`` of Keras 3's ``LossScaleOptimizer``. ``load_model`` gives a
saved model whose optimizer is distributed, with its state.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod._keras.library import (
    assign_values,
    backend_name,
    base_optimizers,
    is_keras3,
    is_legacy_optimizer,
    optimizer_variables,
    read_values,
    trained_variables,
)
from horovod._keras.optimizer_class import (
    DistributedOptimizerMixin,
    NotReducing,
    is_distributed,
    make_class,
)
from horovod._keras.optimizer_keras3 import Keras3Optimizer, Keras3ScalingOptimizer
from horovod._keras.optimizer_sharded import ShardedOptimizer, check_sharded
from horovod._keras.reducer import Options
from horovod.core import world
from horovod.core.gradient_groups import check_local_layers
from horovod.elastic.state import variables_of
from horovod.settings import Settings

_MARK = "_horovod_prepares"


def distribute(keras: Any, optimizer: Any, options: Options, local_layers: Any = None) -> Any:
    """A distributed copy of ``optimizer``, made from its configuration.

    Args:
        keras: the Keras module that ``optimizer`` comes from.
        optimizer: any optimizer of that Keras. The state of a built optimizer of Keras 3 is copied.
        options: how to reduce.
        local_layers: a layer or layers whose weights stay local.

    Raises:
        ValueError: ``optimizer`` is no optimizer of that Keras, or it is distributed already.
    """
    _check_optimizer(keras, optimizer, options)
    check_sharded(keras, optimizer, options)
    layers = check_local_layers(local_layers, lambda: keras.layers.Layer)
    mixin = ShardedOptimizer if options.sharded else _mixin_for(keras, optimizer)
    wrapped_class = make_class(type(optimizer), mixin, keras, options, layers)
    wrapped = _recreate(keras, optimizer, wrapped_class)
    if is_keras3(keras):
        copy_state(optimizer, wrapped, trained_variables(optimizer))
    _prepare_models(keras)
    if is_keras3(keras):
        _prepare_scaling(keras.optimizers.LossScaleOptimizer)
    return wrapped


def copy_state(source: Any, target: Any, variables: Sequence[Any]) -> None:
    """Give ``target`` the state of ``source``.

    Args:
        source: an optimizer, built or not.
        target: a distributed optimizer of a derived class, or one of the same; not built yet.
        variables: the variables that ``source`` was built with.
    """
    if getattr(source, "built", getattr(source, "_built", False)):
        target.build(list(variables))
    # Variables that only target has come last.
    for value, variable in zip(variables_of(source), variables_of(target), strict=False):
        is_ours = isinstance(target, DistributedOptimizerMixin)
        variable.assign(target._hvd_cut(variable, value) if is_ours else value)


def _check_optimizer(keras: Any, optimizer: Any, options: Options) -> None:
    if not isinstance(optimizer, base_optimizers(keras)):
        raise ValueError(
            f"DistributedOptimizer: optimizer must be a Keras optimizer, found {optimizer!r}"
        )
    if isinstance(optimizer, DistributedOptimizerMixin):
        raise ValueError("DistributedOptimizer: this optimizer is distributed already")
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is None:
        return
    if isinstance(inner, DistributedOptimizerMixin):
        raise ValueError("DistributedOptimizer: the inner optimizer is distributed already")
    if not is_keras3(keras) or options.backward_passes_per_step > 1:
        raise ValueError(
            "DistributedOptimizer: wrap the optimizer inside of LossScaleOptimizer instead: "
            "LossScaleOptimizer(hvd.DistributedOptimizer(optimizer))"
        )


def _mixin_for(keras: Any, optimizer: Any) -> type:
    if is_keras3(keras):
        scales = hasattr(optimizer, "inner_optimizer")
        return Keras3ScalingOptimizer if scales else Keras3Optimizer
    from horovod._keras.optimizer_keras2 import Keras2Optimizer, LegacyOptimizer

    return LegacyOptimizer if is_legacy_optimizer(keras, optimizer) else Keras2Optimizer


def _recreate(keras: Any, optimizer: Any, wrapped_class: Any) -> Any:
    config = optimizer.get_config()
    if hasattr(optimizer, "inner_optimizer"):
        return wrapped_class(**{**config, "inner_optimizer": optimizer.inner_optimizer})
    # Pass a schedule unchanged: Keras might not know its class.
    rate = getattr(optimizer, "_learning_rate", None)
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        config["learning_rate"] = rate
    return wrapped_class.from_config(config)


def _prepare_models(keras: Any) -> None:
    """Call ``_prepare`` with each model before its first step; has an effect once per process."""
    original = keras.Model.make_train_function
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def make_train_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        _prepare(keras, self)
        return original(self, *args, **kwargs)

    setattr(make_train_function, _MARK, True)
    keras.Model.make_train_function = make_train_function


def _prepare(keras: Any, model: Any) -> None:
    if not is_distributed(getattr(model, "optimizer", None)):
        return
    if backend_name(keras) == "tensorflow" and model.jit_compile:
        _keep_from_xla(model)


def _keep_from_xla(model: Any) -> None:
    """Train without XLA, unless ``HOROVOD_ENABLE_XLA_OPS=1`` lets it compile our operations."""
    if Settings.from_env().enable_xla_ops:
        return
    model.jit_compile = False
    if world.rank() == 0:
        print(
            "horovod: jit_compile=True has no effect here: XLA compiles Horovod's operations with "
            "HOROVOD_ENABLE_XLA_OPS=1 only, so this model trains with jit_compile=False",
            flush=True,
        )


def _prepare_scaling(kind: Any) -> None:
    """Let loss scaling optimizers around distributed ones reduce, in ``fit`` and in other loops."""
    for name in ("apply", "stateless_apply"):
        original = getattr(kind, name)
        if not hasattr(original, _MARK):
            setattr(kind, name, _distributing(original))


def _distributing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        inner = self.inner_optimizer
        is_around = isinstance(inner, DistributedOptimizerMixin)
        if not is_around or isinstance(self, DistributedOptimizerMixin):
            return original(self, *args, **kwargs)
        _distribute_scaling(self, inner)
        return getattr(self, original.__name__)(*args, **kwargs)

    setattr(apply, _MARK, True)
    return apply


def _distribute_scaling(scaling: Any, inner: Any) -> None:
    """Let the loss scaling optimizer around a distributed one reduce instead of the inner one.

    It drops a step whose gradients are infinite. If each rank decided alone, some ranks would wait
    for gradients that others never send. Local aggregation stays with the inner optimizer.
    """
    if isinstance(inner, ShardedOptimizer):
        raise ValueError(
            "DistributedOptimizer: sharded=True cannot be used inside of LossScaleOptimizer, which "
            "looks at whole gradients"
        )
    args = (inner._hvd_keras, inner._hvd_options, inner._hvd_local_layers)
    scaling.__class__ = make_class(type(scaling), Keras3ScalingOptimizer, *args)
    scaling._hvd_aggregation = None
    scaling._hvd, inner._hvd = inner._hvd, NotReducing(inner._hvd)


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
    if optimizer is None or is_distributed(optimizer):
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
    if len(trained_variables(optimizer, variables)) == len(variables):
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
