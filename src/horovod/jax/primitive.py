"""Collectives as a primitive of JAX: what they are in ``jit``, ``grad`` and ``vmap``.

One primitive stands for all collectives; its parameter is the ``ProgramCall``. Bound to arrays that
are there it runs at once (``eager``). In a program it becomes an asynchronous call of the plugin.
The call begins when its inputs are there and ends when the engine is done: no thread waits, and any
number is under way in any order. Where there is no plugin it becomes an ordered host callback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from horovod.core.operations import Adasum, Kind
from horovod.core.port import keep_failure
from horovod.errors import HorovodInternalError
from horovod.jax import eager
from horovod.jax.call import ProgramCall, result_rows
from horovod.jax.gradients import derivative_of, transpose_of
from horovod.jax.lowering import lower_to_plugin
from horovod.jax.plugin import is_native

_serials = count()


def bind(call: ProgramCall, arrays: Sequence[Any]) -> list[Any]:
    """The results of a call on arrays; traced, if JAX is tracing."""
    return list(_collective.bind(*arrays, call=replace(call, serial=next(_serials))))


_collective = Primitive("horovod_collective")
_collective.multiple_results = True
_collective.def_impl(eager.run)


def _abstract_eval(*arrays: Any, call: ProgramCall) -> tuple[list[Any], Any]:
    _check_traceable(call, arrays)
    shapes = [_result_shape(call, i, array.shape) for i, array in enumerate(arrays)]
    results = [
        jax.core.ShapedArray(shape, array.dtype)
        for shape, array in zip(shapes, arrays, strict=True)
    ]
    return results, frozenset() if is_native() else _callback_effects()


def _result_shape(call: ProgramCall, position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    if call.keeps_shape:
        return shape
    return result_rows(call, position, shape[0]), *shape[1:]


def _check_traceable(call: ProgramCall, arrays: Sequence[Any]) -> None:
    kind = call.title
    for name in call.names:
        if name is not None and "\n" in name:
            raise ValueError(f"{kind}: inside of jit a name is one line, found {name!r}")
    if call.keeps_shape:
        return
    for array in arrays:
        if not array.shape:
            raise ValueError(f"{kind}: the array needs at least one dimension")
        if call.kind == Kind.ALLTOALL and array.shape[0] % call.set_size:
            raise ValueError(
                f"alltoall: {array.shape[0]} rows do not split into {call.set_size} equal parts"
            )


@cache
def _callback_effects() -> Any:
    """What JAX has to know of a program with an ordered callback."""

    def call_nothing() -> None:
        io_callback(lambda: None, None, ordered=True)

    return jax.make_jaxpr(call_nothing)().effects


def _lower(ctx: Any, *operands: Any, call: ProgramCall) -> Any:
    if is_native():
        return lower_to_plugin(ctx, operands, call)
    return mlir.lower_fun(partial(_call_back, call, ctx.avals_out))(ctx, *operands)


def _call_back(call: ProgramCall, results: Sequence[Any], *arrays: Any) -> Any:
    shapes = [jax.ShapeDtypeStruct(result.shape, result.dtype) for result in results]
    return io_callback(partial(_run_in_callback, call, shapes), shapes, *arrays, ordered=True)


def _run_in_callback(call: ProgramCall, shapes: Sequence[Any], *arrays: Any) -> list[Any]:
    # As in the plugin: of an exception JAX passes on no more than its text.
    try:
        results = eager.run_on_host(call, arrays)
    except HorovodInternalError as error:
        keep_failure(error)
        kind = type(error).__name__
        raise RuntimeError(f"HorovodInternalError ({kind}): {error}") from error
    for result, expected in zip(results, shapes, strict=True):
        if result.shape != expected.shape:
            raise ValueError(
                f"{call.prefix}: the result has shape {list(result.shape)}, the compiled program "
                f"expects {list(expected.shape)}; inside jit every rank has to give as many rows"
            )
    return results


try:
    mlir.register_lowering(_collective, _lower, cacheable=False)
except TypeError:  # older versions lower every call anew anyway
    mlir.register_lowering(_collective, _lower)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: ProgramCall) -> tuple[Any, Any]:
    results = bind(call, primals)
    is_used = [not isinstance(tangent, ad.Zero) for tangent in tangents]
    if call.is_group and any(is_used):  # a group runs whole
        is_used = [jnp.issubdtype(primal.dtype, jnp.inexact) for primal in primals]
    positions = [position for position, used in enumerate(is_used) if used]
    derivatives: list[Any] = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    if positions:
        chosen = [ad.instantiate_zeros(tangents[position]) for position in positions]
        reduced = bind(derivative_of(call, positions), chosen)
        for position, derivative in zip(positions, reduced, strict=True):
            derivatives[position] = derivative
    return results, derivatives


def _transpose(cotangents: Sequence[Any], *arrays: Any, call: ProgramCall) -> list[Any]:
    if all(isinstance(cotangent, ad.Zero) for cotangent in cotangents):
        return [ad.Zero(a.aval) if ad.is_undefined_primal(a) else None for a in arrays]
    given = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    rows = tuple(
        array.aval.shape[0] if array.aval.shape else 0 for array in map(_undefined, arrays)
    )
    transposed, factor = transpose_of(call, rows)
    results = bind(transposed, given)
    if factor != 1.0:
        results = [result * jnp.asarray(factor, result.dtype) for result in results]
    pairs = zip(arrays, results, strict=True)
    return [result if ad.is_undefined_primal(array) else None for array, result in pairs]


class _Known:
    """A tangent that is zero all over, where a linear one would be unknown."""

    def __init__(self, array: Any) -> None:
        self.aval = array


def _undefined(array: Any) -> Any:
    return array if ad.is_undefined_primal(array) else _Known(array)


def _batch(
    arrays: Sequence[Any], axes: Sequence[Any], *, call: ProgramCall
) -> tuple[list[Any], Any]:
    if call.op == Adasum and call.kind == Kind.ALLREDUCE:
        raise NotImplementedError("allreduce: Adasum of a batch is not the batch of Adasums")
    if call.keeps_shape:
        return bind(call, arrays), axes
    moved = [
        array if axis is None else jnp.moveaxis(array, axis, 1)
        for array, axis in zip(arrays, axes, strict=True)
    ]
    return bind(call, moved), [axis if axis is None else 1 for axis in axes]


_collective.def_effectful_abstract_eval(_abstract_eval)
ad.primitive_jvps[_collective] = _jvp
ad.primitive_transposes[_collective] = _transpose
batching.primitive_batchers[_collective] = _batch
