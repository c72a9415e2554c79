"""Keras 3 on JAX: gradients leave a compiled step through one host callback.

A training step is one XLA program, so all gradients of a step travel in one call: callbacks run one
at a time, and two that wait for other ranks in another order would wait for ever. The callback is
*ordered*, so two programs call in the order in which this rank dispatched them, and it computes
nothing with JAX, whose threads may all be busy.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from horovod._keras.options import Options
from horovod._keras.plan import Plan
from horovod._keras.reducer import GradientReducer
from horovod.core.operations import Intent
from horovod.core.world import keep_failure
from horovod.errors import HorovodInternalError
from horovod.jax.compression import Compression, FP16Compressor
from horovod.numpy import adapter

__all__ = [
    "Compression",
    "FP16Compressor",
    "compute_gradients",
    "global_variables",
    "is_traced",
    "make_reducer",
    "to_tensor",
]


def make_reducer(name: str, options: Options) -> GradientReducer:
    """A reducer of JAX gradients, inside of ``jit`` and outside; ``name`` begins all names."""
    return GradientReducer(name, options, _JaxExchange(options))


def to_tensor(array: Any) -> Any:
    """A JAX array with the contents of a NumPy array."""
    return jnp.asarray(array)


def compute_gradients(loss: Any, variables: list[Any], grad_loss: Any, tape: Any) -> list[Any]:
    """There are no tapes on this backend.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        "compute_gradients() needs Keras on TensorFlow; compute gradients as the backend does and "
        "give them to apply_gradients()"
    )


def global_variables() -> list[Any]:
    """There are none on this backend.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(
        "broadcast_global_variables() needs a TF1 graph; use BroadcastGlobalVariablesCallback"
    )


def is_traced(value: Any) -> bool:
    """Whether a value is known only when a compiled program runs."""
    return isinstance(value, jax.core.Tracer)


class _JaxExchange:
    def __init__(self, options: Options) -> None:
        self._compression = options.compression
        factor = options.gradient_predivide_factor
        self._operation = (options.op, 1.0 / factor, factor)
        self._process_set = options.process_set

    def __call__(self, gradients: list[Any], plan: Plan) -> list[Any]:
        compressed = [self._compression.compress(jnp.asarray(g)) for g in gradients]
        wires = [wire for wire, _ in compressed]
        if any(map(is_traced, wires)):
            shapes = [jax.ShapeDtypeStruct(wire.shape, wire.dtype) for wire in wires]
            host = partial(self._reduce_on_host, plan)
            received = io_callback(host, shapes, *wires, ordered=True)
        else:
            received = [jnp.asarray(array) for array in self._reduce_on_host(plan, *wires)]
        return [
            self._compression.decompress(array, context)
            for array, (_, context) in zip(received, compressed, strict=True)
        ]

    def _reduce_on_host(self, plan: Plan, *wires: Any) -> list[Any]:
        # Copies, because what XLA lends is read-only.
        arrays = [np.array(wire, copy=True, order="C") for wire in wires]
        try:
            self._run(plan, arrays)
        except HorovodInternalError as error:
            keep_failure(error)  # JAX passes on no more than its text
            raise
        return arrays

    def _run(self, plan: Plan, arrays: list[Any]) -> None:
        """Reduce in place; all operations are under way before the first is waited for."""
        handles = []
        try:
            for name, positions in plan.groups:
                members = [arrays[p] for p in positions]
                args = (members, None, name, *self._operation, self._process_set)
                handles.append(adapter.grouped_allreduce_async_(*args))
            if plan.singles:
                names, members = _split(plan, arrays)
                handles.append(
                    adapter.allreduce_batch_async_(
                        members,
                        names,
                        *self._operation,
                        intent=Intent.WAIT,
                        process_set=self._process_set,
                    )
                )
        finally:
            _synchronize_all(handles)


def _split(plan: Plan, arrays: list[Any]) -> tuple[list[str], list[Any]]:
    return [name for name, _ in plan.singles], [arrays[p] for _, p in plan.singles]


def _synchronize_all(handles: list[int]) -> None:
    failure: Exception | None = None
    for handle in handles:
        try:
            adapter.synchronize(handle)
        except HorovodInternalError as error:
            failure = failure or error
    if failure is not None:
        raise failure
