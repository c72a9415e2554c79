"""``DistributedOptimizer``: an optimizer of a new class made from the user's, of the same name.

``fit`` and ``train_on_batch`` of every Keras call ``Model.make_train_function`` right before the
first step. The first distributed optimizer of a process wraps that method, for models that use a
distributed optimizer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from horovod._keras.library import (
    backend_name,
    base_optimizers,
    inner_optimizers,
    is_keras3,
    is_legacy_optimizer,
)
from horovod._keras.optimizer_class import DistributedOptimizerMixin, NotReducing, make_class
from horovod._keras.optimizer_keras3 import Keras3Optimizer, Keras3ScalingOptimizer
from horovod._keras.options import Options
from horovod.core import world
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
    layers = _check_layers(keras, local_layers)
    mixin = _mixin_for(keras, optimizer)
    wrapped_class = make_class(type(optimizer), mixin, keras, options, layers)
    wrapped = _recreate(keras, optimizer, wrapped_class)
    if is_keras3(keras):
        copy_state(optimizer, wrapped, getattr(optimizer, "_trainable_variables", ()))
    _prepare_models(keras)
    return wrapped


def _check_layers(keras: Any, local_layers: Any) -> Sequence[Any]:
    """``local_layers`` as a sequence.

    Raises:
        ValueError: ``local_layers`` is neither a layer nor a list of layers.
    """
    if local_layers is None:
        return ()
    layers = local_layers if isinstance(local_layers, list | tuple) else [local_layers]
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(
                f"local_layers must be a Keras layer or a list of them, found {layer!r}"
            )
    return tuple(layers)


def copy_state(source: Any, target: Any, variables: Sequence[Any]) -> None:
    """Give ``target`` the state of ``source``.

    Args:
        source: an optimizer, built or not.
        target: an optimizer of the same or a derived class, not built yet.
        variables: the variables that ``source`` was built with.
    """
    if getattr(source, "built", getattr(source, "_built", False)):
        target.build(list(variables))
    known = source.variables() if callable(source.variables) else source.variables
    copies = target.variables() if callable(target.variables) else target.variables
    # Variables that only target has come last.
    for value, variable in zip(known, copies, strict=False):
        variable.assign(value)


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
    optimizers = list(inner_optimizers(getattr(model, "optimizer", None)))
    if not any(isinstance(optimizer, DistributedOptimizerMixin) for optimizer in optimizers):
        return
    if is_keras3(keras) and not isinstance(optimizers[0], DistributedOptimizerMixin):
        _distribute_scaling(optimizers[0], optimizers[1])
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


def _distribute_scaling(scaling: Any, inner: Any) -> None:
    """Let the loss scaling optimizer around a distributed one reduce instead of the inner one.

    It drops a step whose gradients are infinite. If each rank decided alone, some ranks would wait
    for gradients that others never send. Local aggregation stays with the inner optimizer.
    """
    args = (inner._hvd_keras, inner._hvd_options, inner._hvd_local_layers)
    scaling.__class__ = make_class(type(scaling), Keras3ScalingOptimizer, *args)
    scaling._hvd_aggregation = None
    scaling._hvd, inner._hvd = inner._hvd, NotReducing(inner._hvd)
