"""Keras 3 on JAX: a compiled step reduces its gradients in one host callback.

A training step is one XLA program. XLA runs one callback at a time, so two callbacks that wait for
other ranks in different orders would deadlock: one callback reduces all gradients of a step. The
callback is *ordered*, so programs call it in the order in which this rank dispatched them. It
computes nothing with JAX, because all threads of JAX may be busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from horovod._keras.reducer import GradientReducer, Options, Plan
from horovod._keras.reducer import compute_gradients as compute_gradients
from horovod._keras.reducer import global_variables as global_variables
from horovod.core.compression import compress_all, decompress_all, link_format_of
from horovod.core.handles import wait_for_all
from horovod.core.operations import Intent
from horovod.core.port import keep_failure
from horovod.errors import HorovodInternalError
from horovod.jax.compression import Compression as Compression
from horovod.jax.compression import FP16Compressor as FP16Compressor  # saved estimators may name it
from horovod.numpy import adapter


def make_reducer(name: str, options: Options) -> GradientReducer:
    """A reducer of JAX gradients, in ``jit`` and outside; operation names begin with ``name``."""
    return GradientReducer(name, options, _JaxExchange(options))


def to_tensor(array: Any) -> Any:
    """A JAX array with the contents of a NumPy array."""
    return jnp.asarray(array)


def is_traced(value: Any) -> bool:
    """Whether a value is known only when a compiled program runs."""
    return isinstance(value, jax.core.Tracer)


class _JaxExchange:
    def __init__(self, options: Options) -> None:
        self._compression = options.compression
        factor = options.gradient_predivide_factor
        self._operation = (options.op, 1.0 / factor, factor)
        self._link_format = link_format_of(options.compression)
        self._process_set = options.process_set

    def __call__(self, gradients: list[Any], plan: Plan) -> list[Any]:
        wires, contexts = compress_all(self._compression, [jnp.asarray(g) for g in gradients])
        if any(map(is_traced, wires)):
            shapes = [jax.ShapeDtypeStruct(wire.shape, wire.dtype) for wire in wires]
            host = partial(self._reduce_on_host, plan)
            received = io_callback(host, shapes, *wires, ordered=True)
        else:
            received = [jnp.asarray(array) for array in self._reduce_on_host(plan, *wires)]
        return decompress_all(self._compression, received, contexts)

    def _reduce_on_host(self, plan: Plan, *wires: Any) -> list[Any]:
        # Copies: XLA's buffers are read-only.
        arrays = [np.array(wire, copy=True, order="C") for wire in wires]
        try:
            wait_for_all(self._start(plan, arrays), adapter.synchronize)
        except HorovodInternalError as error:
            keep_failure(error)  # JAX passes on the text only
            raise
        return arrays

    def _start(self, plan: Plan, arrays: list[Any]) -> Iterator[int]:
        """Start to reduce in place."""
        for name, positions in plan.groups:
            members = [arrays[p] for p in positions]
            args = (members, None, name, *self._operation, self._process_set)
            named: Any = {"members": [plan.names[p] for p in positions]}
            yield adapter.grouped_allreduce_async_(*args, self._link_format, **named)
        if plan.singles:
            names, positions = map(list, zip(*plan.singles, strict=True))
            members = [arrays[p] for p in positions]
            options: Any = {"intent": Intent.WAIT, "process_set": self._process_set}
            options["link_format"] = self._link_format
            yield adapter.allreduce_batch_async_(members, names, *self._operation, **options)
