"""The moment before a model makes its training step: what ``fit`` and a distributed optimizer need.

``fit`` and ``train_on_batch`` of every Keras call ``Model.make_train_function`` right before the
first step. The first distributed optimizer puts itself in between there, for models that use one.
"""

from __future__ import annotations

import functools
from typing import Any

from horovod._keras.library import backend_name, inner_optimizers, is_keras3
from horovod._keras.optimizer_class import DistributedOptimizerMixin, NotReducing, make_class
from horovod._keras.optimizer_keras3 import Keras3ScalingOptimizer
from horovod.core import world
from horovod.settings import Settings

__all__ = ["prepare_models"]

_MARK = "_horovod_prepares"


def prepare_models(keras: Any) -> None:
    """Look at every model of this Keras before it makes its training step; once per process."""
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
    """Train without XLA, unless ``HOROVOD_ENABLE_XLA_OPS=1`` says that it may compile ours."""
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
    """Let the loss scaling optimizer that Keras put around a distributed one reduce instead.

    It drops a step whose gradients are infinite; decided by each rank for itself, some ranks would
    wait for gradients that others do not send. Local aggregation stays with the inner one.
    """
    args = (inner._hvd_keras, inner._hvd_options, inner._hvd_local_layers)
    scaling.__class__ = make_class(type(scaling), Keras3ScalingOptimizer, *args)
    scaling._hvd_aggregation = None
    scaling._hvd, inner._hvd = inner._hvd, NotReducing(inner._hvd)
