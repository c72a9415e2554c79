"""Collectives as a primitive of JAX: what they are in ``jit``, ``grad`` and ``vmap``.

One primitive stands for all collectives; its parameter is the ``ProgramCall``. Bound to arrays that
are there it runs at once (``eager``). In a program it becomes an asynchronous call of the plugin.
The call begins when its inputs are there and ends when the engine is done: no thread waits, and any
number is under way in any order. Where there is no plugin it becomes an ordered host callback.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from horovod.core.calls import check_gradient
from horovod.core.operations import Adasum, Average, Kind, Sum
from horovod.core.port import keep_failure
from horovod.errors import HorovodInternalError
from horovod.jax import eager
from horovod.jax.eager import ProgramCall, result_rows
from horovod.jax.plugin import TARGET, is_native

# XLA runs programs whose buffers all have up to 512 bytes, and those of up to 8 steps, one step
# after the other. There a collective would wait for the one before it, and ranks whose programs
# have another order would wait for each other. So each call gets a larger constant.
_BALLAST = np.zeros(1024, np.uint8)

# Parts of the names of places in programs: in a branch of ``cond``, and what ``jax.checkpoint``
# computes again. Calls in a function that JAX compiles once for several places are one call.
_BRANCH, _RECOMPUTED = "cond/branch_", "rematted_computation"


class _Positions:
    """Numbers the collectives of one program; kept among JAX's data of the program."""

    def __init__(self) -> None:
        self.next = count().__next__
        self._copies: Counter[tuple[int, str]] = Counter()

    def distinct(self, name: str, call: ProgramCall, place: str) -> str:
        """``name``; a number follows where a call of the user is in the program once more.

        Its derivatives, and what ``jax.checkpoint`` computes again, may run at the same time.
        Counted for each call of the user: two that have one name, perhaps in branches of which
        ranks take different ones, have derivatives of one name. One that is in two branches has one
        name there.

        Args:
            name: that the user has given, or what follows from it.
            call: of which the name is.
            place: where it is in the program, as JAX names it.
        """
        self._copies[call.origin, name] += 1
        number = self._copies[call.origin, name]
        is_alternative = _BRANCH in place and _RECOMPUTED not in place and not call.is_derivative
        return name if number == 1 or is_alternative else f"{name}.{number}"


def lower_to_plugin(ctx: Any, operands: Sequence[Any], call: ProgramCall) -> Any:
    """The operations of a program that do a call.

    A collective without a name gets one from its position in the program: ranks that compile the
    same functions give the same names, whatever else they compile and however often.

    Raises:
        NotImplementedError: the program runs on several devices of this process.
    """
    _check_devices(ctx.module_context, call)
    aliases = {position: position for position in range(len(operands))} if call.keeps_shape else {}
    # Otherwise XLA removes a call whose result has no elements, perhaps on one rank only.
    options = {"operand_output_aliases": aliases, "has_side_effect": True}
    lower = jax.ffi.ffi_lowering(TARGET, **options)
    aval = jax.core.ShapedArray(_BALLAST.shape, _BALLAST.dtype)
    return lower(
        ctx.replace(avals_in=[*ctx.avals_in, aval]),
        *operands,
        mlir.ir_constant(_BALLAST),
        names="\n".join(_names(ctx, call)),
        keeps_errors="".join("01"[keeps] for keeps in call.keeps_errors),
        kind=np.int64(call.kind),
        op=np.int64(call.op),
        is_group=np.int64(call.is_group),
        is_zeroed=np.int64(call.is_zeroed),
        root_rank=np.int64(call.root_rank),
        prescale_factor=np.float64(call.prescale),
        postscale_factor=np.float64(call.postscale),
        link_format=np.int64(call.link_format),
        process_set_id=np.int64(call.process_set),
    )


def _names(ctx: mlir.LoweringRuleContext, call: ProgramCall) -> list[str]:
    program = ctx.module_context
    title = f"{call.prefix}.{program.module.operation.attributes['sym_name'].value}"
    positions = _positions(program)
    place = str(ctx.name_stack)
    return [
        f"{title}.{positions.next()}" if name is None else positions.distinct(name, call, place)
        for name in call.full_names()
    ]


def _positions(program: Any) -> _Positions:
    for kept in program.keepalives:
        if isinstance(kept, _Positions):
            return kept
    program.keepalives.append(_Positions())
    positions: _Positions = program.keepalives[-1]
    return positions


def _check_devices(program: Any, call: ProgramCall) -> None:
    context = program.axis_context  # of jit or of shard_map
    mesh_size: int = getattr(getattr(context, "mesh", None), "size", 1)
    devices = max(mesh_size, getattr(context, "num_devices", None) or 1)
    if devices > 1:
        raise NotImplementedError(
            f"{call.title}: the program runs on {devices} devices of this process; "
            "inside of jit a collective needs a program on one device. Reduce sharded arrays "
            "outside of jit"
        )


_serials = count(1)


def bind(call: ProgramCall, arrays: Sequence[Any]) -> list[Any]:
    """The results of a call on arrays, then errors; traced, if JAX is tracing.

    Raises:
        ValueError: an array is of a dtype that the engine has not.
    """
    eager.check_dtypes(call, arrays)
    serial = next(_serials)
    numbered = replace(call, serial=serial, origin=call.origin or serial)
    return list(_collective.bind(*arrays, call=numbered))


_collective = Primitive("horovod_collective")
_collective.multiple_results = True
_collective.def_impl(eager.run)


def _abstract_eval(*arrays: Any, call: ProgramCall) -> tuple[list[Any], Any]:
    _check_traceable(call, arrays)
    shapes = [array.shape for array in arrays]
    if not call.keeps_shape:
        shapes = [(result_rows(call, i, shape[0]), *shape[1:]) for i, shape in enumerate(shapes)]
    pairs = zip(shapes, arrays, strict=True)
    results = [jax.core.ShapedArray(shape, array.dtype) for shape, array in pairs]
    pairs = zip(arrays, call.keeps_errors, strict=False)
    results += [jax.core.ShapedArray(a.shape, jnp.float32) for a, keeps in pairs if keeps]
    return results, frozenset() if is_native() else _callback_effects()


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
    """The effects of a program with an ordered callback, which JAX has to know."""

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
                f"expects {list(expected.shape)}; inside jit every rank must give the same number "
                "of rows"
            )
    return results


try:
    mlir.register_lowering(_collective, _lower, cacheable=False)
except TypeError:  # older versions lower every call anew anyway
    mlir.register_lowering(_collective, _lower)


def _refuse_errors(call: ProgramCall, transformation: str) -> None:
    if any(call.keeps_errors):
        raise NotImplementedError(
            f"{call.title}: error feedback has no {transformation}; use compression=none there"
        )


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: ProgramCall) -> tuple[Any, Any]:
    _refuse_errors(call, "gradient")
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
            _check_rows(call, results[position], derivative)
            derivatives[position] = derivative
    return results, derivatives


def _check_rows(call: ProgramCall, result: Any, derivative: Any) -> None:
    """Refuse a gradient of what ranks gave unequal rows to: its program has equal ones."""
    if derivative.shape != result.shape:
        raise ValueError(
            f"{eager.title_of(call, 0)}: the result has {result.shape[0]} rows, of equal ones it "
            f"would have {derivative.shape[0]}; a gradient needs the same number of rows on every "
            "rank: pad them"
        )


def _transpose(cotangents: Sequence[Any], *arrays: Any, call: ProgramCall) -> list[Any]:
    if all(isinstance(cotangent, ad.Zero) for cotangent in cotangents):
        return [ad.Zero(a.aval) if ad.is_undefined_primal(a) else None for a in arrays]
    given = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    # A tangent that is zero all over is an array, where a linear one would be unknown.
    shapes = [a.aval.shape if ad.is_undefined_primal(a) else a.shape for a in arrays]
    rows = tuple(shape[0] if shape else 0 for shape in shapes)
    transposed, factor = transpose_of(call, rows)
    results = bind(transposed, given)
    if factor != 1.0:
        results = [result * jnp.asarray(factor, result.dtype) for result in results]
    pairs = zip(arrays, results, strict=True)
    return [result if ad.is_undefined_primal(array) else None for array, result in pairs]


def _batch(
    arrays: Sequence[Any], axes: Sequence[Any], *, call: ProgramCall
) -> tuple[list[Any], Any]:
    _refuse_errors(call, "batch")
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


def derivative_of(call: ProgramCall, positions: Sequence[int]) -> ProgramCall:
    """The collective that tangents of the arrays at these positions go through.

    As in ``horovod.torch``, the backward pass of an allreduce is the same allreduce, of an
    allgather and a broadcast the average of all ranks' gradients, on the rank that gave the rows.
    All are on the same process set, on all its ranks.

    Raises:
        NotImplementedError: the op is not linear.
    """
    check_gradient(call.kind, call.op, "use jax.lax.stop_gradient on the array")
    chosen = call.following()
    if not call.is_group:
        chosen = replace(chosen, names=tuple(chosen.names[position] for position in positions))
    if call.rows:
        chosen = replace(chosen, rows=tuple(call.rows[position] for position in positions))
    return chosen


def transpose_of(call: ProgramCall, rows: tuple[int, ...]) -> tuple[ProgramCall, float]:
    """The collective that cotangents go through, and a factor for its results.

    ``rows``: of the arrays that the call was given.
    """
    if call.kind == Kind.ALLGATHER:
        return replace(call, kind=Kind.REDUCESCATTER, op=Average, rows=()), 1.0
    if call.kind == Kind.BROADCAST:
        return replace(call, kind=Kind.ALLREDUCE, op=Average, is_for_root=True), 1.0
    if call.is_for_root:  # a gradient of the gradient: back to the broadcast
        return replace(call, kind=Kind.BROADCAST, is_for_root=False), 1.0
    if call.kind == Kind.REDUCESCATTER:
        factor = call.prescale * call.postscale * (call.set_size if call.op == Sum else 1)
        plain = replace(call, kind=Kind.ALLGATHER, op=Average, prescale=1.0, postscale=1.0)
        return replace(plain, rows=rows), factor
    return call, 1.0
