"""``DistributedOptimizer`` for all fronts: a new class made from the user's, of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod._keras.library import base_optimizers, is_keras3, is_legacy_optimizer
from horovod._keras.optimizer_class import DistributedOptimizerMixin, make_class
from horovod._keras.optimizer_keras3 import Keras3Optimizer, Keras3ScalingOptimizer
from horovod._keras.options import Options
from horovod._keras.preparation import prepare_models

__all__ = ["copy_state", "distribute"]


def distribute(keras: Any, optimizer: Any, options: Options, local_layers: Any = None) -> Any:
    """A distributed copy of ``optimizer``, made from its configuration.

    Args:
        keras: the Keras module that ``optimizer`` comes from.
        optimizer: any optimizer of that Keras. If it is Keras 3's and was built, its state is
            copied.
        options: how to reduce.
        local_layers: a layer or layers whose weights stay local.

    Raises:
        ValueError: this is no such optimizer, or it is distributed already.
    """
    _check_optimizer(keras, optimizer, options)
    layers = _check_layers(keras, local_layers)
    mixin = _mixin_for(keras, optimizer)
    wrapped_class = make_class(type(optimizer), mixin, keras, options, layers)
    wrapped = _recreate(keras, optimizer, wrapped_class)
    if is_keras3(keras):
        copy_state(optimizer, wrapped, getattr(optimizer, "_trainable_variables", ()))
    prepare_models(keras)
    return wrapped


def _check_layers(keras: Any, local_layers: Any) -> Sequence[Any]:
    """``local_layers`` as a sequence.

    Raises:
        ValueError: it is neither a layer nor a list of layers.
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
    """Give ``target`` all that ``source`` has learned about ``variables``.

    Args:
        source: an optimizer, built or not.
        target: an optimizer of the same class, or one derived from it, not built yet.
        variables: what ``source`` was built with.
    """
    if getattr(source, "built", getattr(source, "_built", False)):
        target.build(list(variables))
    known = source.variables() if callable(source.variables) else source.variables
    copies = target.variables() if callable(target.variables) else target.variables
    # What target has beyond source comes last.
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
    # A schedule goes over as it is: its class need not be known to Keras's loading.
    rate = getattr(optimizer, "_learning_rate", None)
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        config["learning_rate"] = rate
    return wrapped_class.from_config(config)
