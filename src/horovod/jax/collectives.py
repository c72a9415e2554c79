"""The collectives over arrays and pytrees of JAX: in compiled programs and outside.

All return new arrays. Outside of ``jit`` they block and raise as ``horovod.torch`` does. Inside
they are part of the program; shapes are static there, and what goes wrong surfaces as
``jax.errors.JaxRuntimeError`` (or ``ValueError``, where JAX runs a small program at once) with the
text of the ``HorovodInternalError``, when the program's results are waited for.

Common arguments. ``tensor``: an array, or a pytree of arrays, each an operation of its own; uint8,
uint16, int8, int16, int32, int64, float16, bfloat16, float32, float64, bool, complex64 or
complex128. ``name``: the same on all ranks; members of a pytree add their path. Without one,
outside of ``jit`` the n-th unnamed operations of a kind belong together, and inside those in the
same place of the same-named function. ``process_set``: the ranks that take part; this process is
one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from horovod.core.calls import as_group, check_splits, exchange, reduction
from horovod.core.compression import (
    NoneCompressor,
    check_not_on_links,
    compress_all,
    decompress_all,
    link_format_of,
)
from horovod.core.operations import Average, Kind
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.jax import eager
from horovod.jax.eager import ProgramCall, call_on
from horovod.jax.primitive import bind
from horovod.numpy.adapter import NumpyAdapter

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]


def allreduce(
    tensor: Any,
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = NoneCompressor,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce over all ranks; differentiable with ``Average`` and ``Sum``.

    Args:
        tensor: any shape, the same on all ranks.
        op: Average (default), Sum, Min, Max, Product, or Adasum for floats; the same on all ranks.
        prescale_factor: multiplies every input before the reduction.
        postscale_factor: multiplies the result.
        compression: what travels, for example ``Compression.fp16``.

    Returns:
        The same structure, shapes and dtypes.

    Raises:
        ValueError: an argument is unusable.
        MismatchError: ranks disagree; the engine stays usable.
        HorovodInternalError: a rank was lost; only a new ``init`` helps.
    """
    names, arrays, structure = _flatten(tensor, name)
    how = Reduction(op, prescale_factor, postscale_factor, compression, process_set)
    return structure.unflatten(allreduce_batch(arrays, names, how))


def grouped_allreduce(
    tensors: Any,
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = NoneCompressor,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Like ``allreduce`` of a list or another pytree, as one operation: whole or not at all."""
    paths, arrays, structure = _flatten(tensors, "")
    how = Reduction(op, prescale_factor, postscale_factor, compression, process_set)
    reduced = allreduce_batch(as_group(arrays), [name, *paths], how, is_group=True)
    return structure.unflatten(reduced)


class Reduction(NamedTuple):
    """How an allreduce makes one array of those of all ranks."""

    op: int | None
    prescale: float
    postscale: float
    compression: Any
    process_set: ProcessSet


def allreduce_batch(
    arrays: Sequence[Any], names: Sequence[str | None], how: Reduction, is_group: bool = False
) -> list[Any]:
    """Reduce arrays in one call: one operation each, or with ``is_group`` one for all.

    ``names``: one for each array; with ``is_group`` the operation's before them.
    """
    call = _allreduce(how, names, is_group)
    wires, contexts = compress_all(how.compression, arrays)
    return decompress_all(how.compression, bind(call, wires) if wires else [], contexts)


def allreduce_group(
    arrays: Sequence[Any], names: Sequence[str], how: Reduction, keeps_errors: Sequence[bool]
) -> tuple[list[Any], list[Any]]:
    """Reduce arrays in one operation, and tell what a compression for links has left out.

    Args:
        names: the operation's, then the arrays'.
        keeps_errors: of which arrays.

    Returns:
        The results, and the errors of those arrays, float32.
    """
    call = replace(_allreduce(how, names, is_group=True), keeps_errors=tuple(keeps_errors))
    results = bind(call, arrays)
    return results[: len(arrays)], results[len(arrays) :]


def _allreduce(how: Reduction, names: Sequence[str | None], is_group: bool) -> ProgramCall:
    op, prescale, postscale, compression, process_set = how
    on_links = link_format_of(compression)
    call = reduction(Kind.ALLREDUCE, None, op, prescale, postscale, process_set, on_links)
    return call_on(process_set, call, names, is_group)


def reduce_parts(arrays: Sequence[Any], name: str, how: Reduction) -> list[Any]:
    """This rank's part of the rows of each reduced array, in one operation."""
    op, prescale, postscale, compression, process_set = how
    check_not_on_links(compression, "sharded optimizer")
    checked = reduction(Kind.REDUCESCATTER, None, op, prescale, postscale, process_set)
    call = call_on(process_set, checked, [name], is_group=True)
    wires, contexts = compress_all(compression, arrays)
    return decompress_all(compression, bind(call, wires), contexts)


def gather_parts(
    parts: Sequence[Any], rows: Sequence[int], name: str, process_set: ProcessSet
) -> list[Any]:
    """Join the parts of all ranks, split as a reducescatter splits, in one operation.

    ``rows``: how many each result has.
    """
    call = call_on(process_set, exchange(Kind.ALLGATHER, process_set), [name], is_group=True)
    return bind(replace(call, rows=tuple(rows)), parts)


def allgather(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Join all ranks' arrays along the first dimension; differentiable.

    Args:
        tensor: [n, ...]; n may differ between ranks and be 0, the rest not. Inside of ``jit``, and
            for a gradient, n is the same on all ranks.
    """
    return _each(tensor, name, call_on(process_set, exchange(Kind.ALLGATHER, process_set), []))


def grouped_allgather(
    tensors: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Like ``allgather`` of a list or another pytree, as one operation."""
    return _whole(tensors, name, call_on(process_set, exchange(Kind.ALLGATHER, process_set), []))


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Give all ranks the values of ``root_rank``, a rank of the world; differentiable.

    Args:
        tensor: any shape, the same on all ranks.
    """
    call = exchange(Kind.BROADCAST, process_set, root_rank)
    return _each(tensor, name, call_on(process_set, call, []))


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its part of the first dimension; differentiable without ``splits``.

    Args:
        tensor: one array, [n, ...]; n may differ between ranks, the rest not. Inside of ``jit`` n
            is the same on all ranks, a multiple of their number.
        splits: outside of ``jit`` only. int32 vector or list: rows for each rank of the set.

    Returns:
        The rows received, in rank order; with ``splits`` also their number by rank, int32.
    """
    call = call_on(process_set, exchange(Kind.ALLTOALL, process_set), [name])
    array = _to_array(tensor)
    if splits is None:
        return bind(call, [array])[0]
    if isinstance(array, jax.core.Tracer) or isinstance(splits, jax.core.Tracer):
        raise ValueError("alltoall: inside of jit and grad there are equal parts only, no splits")
    parts = NumpyAdapter().split_list(jax.device_get(splits))
    return eager.run_alltoall(call, array, check_splits(parts))


def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce over all ranks and keep this rank's part of the rows; differentiable.

    Args:
        tensor: [n, ...], the same shape on all ranks. Every rank gets n // size rows in rank
            order, the first n % size ranks one more.
        op: Average or Sum; the same on all ranks.
        prescale_factor: multiplies every input before the reduction.
        postscale_factor: multiplies the result.
    """
    call = reduction(Kind.REDUCESCATTER, None, op, prescale_factor, postscale_factor, process_set)
    return _each(tensor, name, call_on(process_set, call, []))


def grouped_reducescatter(
    tensors: Any,
    op: int = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Like ``reducescatter`` of a list or another pytree, as one operation."""
    call = reduction(Kind.REDUCESCATTER, None, op, prescale_factor, postscale_factor, process_set)
    return _whole(tensors, name, call_on(process_set, call, []))


def _each(tree: Any, name: str | None, call: ProgramCall) -> Any:
    names, arrays, structure = _flatten(tree, name)
    results = bind(replace(call, names=tuple(names)), arrays) if arrays else []
    return structure.unflatten(results)


def _whole(tree: Any, name: str | None, call: ProgramCall) -> Any:
    _, arrays, structure = _flatten(tree, None)
    results = bind(replace(call, names=(name,), is_group=True), as_group(arrays))
    return structure.unflatten(results)


def _flatten(tree: Any, name: str | None) -> tuple[list[str | None], list[Any], Any]:
    """Names, arrays and structure of a pytree; a single array has the name itself."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [None if name is None else name + jax.tree_util.keystr(path) for path, _ in leaves]
    return names, [_to_array(leaf) for _, leaf in leaves], structure


def _to_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
