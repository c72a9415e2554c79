"""Give all ranks one rank's parameters; the same for objects is ``horovod.numpy.objects``.

Called once before training and after a restore, outside of ``jit``, so this favours exactness over
speed: no dtype is converted, and what the engine does not know travels as its bytes.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from horovod.core.calls import exchange
from horovod.core.operations import Kind
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.jax import eager
from horovod.jax.eager import call_on
from horovod.jax.sharded_state import check_no_shares
from horovod.numpy.adapter import DTYPES
from horovod.numpy.objects import allgather_object, broadcast_object

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters", "is_key"]

_NUMBERS = (bool, int, float, complex)
_ARRAYS = (jax.Array, np.ndarray, np.generic)


def broadcast_parameters(
    params: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """A pytree with the root's arrays and numbers; blocks until all are there.

    For parameters, the state of an optax optimizer, a flax ``TrainState`` or an equinox module
    alike. Not inside of ``jit``.

    Args:
        params: any pytree with the same structure, shapes and dtypes on every rank. Leaves that are
            no arrays and no numbers, such as functions, stay as they are.
        root_rank: the rank whose values all ranks get; the same on every rank.
        process_set: the ranks that take part; this process and the root are among them.

    Returns:
        The same structure; arrays of JAX in the place (device, sharding) of those given.

    Raises:
        ValueError: there is no such root, ``params`` is being traced, or has the state of an
            optimizer with ``sharded=True``.
        HorovodInternalError: ranks disagree about an array, or a rank was lost.
    """
    checked = exchange(Kind.BROADCAST, process_set, root_rank)
    check_no_shares(params, "broadcast_parameters")
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    if any(isinstance(leaf, jax.core.Tracer) for _, leaf in leaves):
        raise ValueError("broadcast_parameters: call it outside of jit; inside use broadcast")
    sent = [i for i, (_, leaf) in enumerate(leaves) if isinstance(leaf, (*_ARRAYS, *_NUMBERS))]
    names = [f"parameter{jax.tree_util.keystr(leaves[i][0])}" for i in sent]
    results = [leaf for _, leaf in leaves]
    call = call_on(process_set, checked, names)
    arrays = [_to_host(leaves[i][1]) for i in sent]
    received = eager.run_on_host(call, [_to_wire(array) for array in arrays])
    for position, array, wire in zip(sent, arrays, received, strict=True):
        results[position] = _like(leaves[position][1], _from_wire(wire, array))
    return structure.unflatten(results)


def is_key(array: Any) -> bool:
    """Whether it is an array of random keys, whose bits are behind its dtype."""
    return isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)


def _to_host(leaf: Any) -> NDArray[Any]:
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf, order="C")


def _to_wire(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype in DTYPES or array.dtype.name == "bfloat16":
        return array
    return array.reshape(-1).view(np.uint8)


def _from_wire(wire: NDArray[Any], array: NDArray[Any]) -> NDArray[Any]:
    if wire.dtype == array.dtype:
        return wire
    return wire.view(array.dtype).reshape(array.shape)


def _like(leaf: Any, array: NDArray[Any]) -> Any:
    """``array`` as what the leaf was."""
    if is_key(leaf):
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array):
        return jax.device_put(array, leaf.sharding)
    if isinstance(leaf, np.ndarray):
        return array
    return array.dtype.type(array[()]) if isinstance(leaf, np.generic) else type(leaf)(array[()])
