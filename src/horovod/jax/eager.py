"""Collectives on arrays that are there: through NumPy views of them, without copies on the CPU.

A ``ProgramCall`` is what is known of a collective when a program is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from numpy.typing import NDArray

from horovod.core.calls import Call, check_complex
from horovod.core.operations import Dtype, Result, own_part
from horovod.core.process_sets import ProcessSet
from horovod.core.world import rank
from horovod.numpy.adapter import ArrayCalls, NumpyAdapter


@dataclass(frozen=True)
class ProgramCall(Call):
    """A ``Call`` with its names, on one or more arrays; equal on all ranks of the set.

    Only ``set_rank``, ``serial`` and ``origin`` may differ between ranks.
    """

    # One for each array; of a group its own, and where they are known its arrays'.
    names: tuple[str | None, ...] = ()
    set_size: int = 1
    set_rank: int = 0
    is_for_root: bool = False  # ranks other than ``root_rank`` take part, but have zeros
    rows: tuple[int, ...] = ()  # of an allgather's results, where ranks give unequal parts
    # Whether an array's errors of a low-bit format are a result, too, after those of all arrays.
    keeps_errors: tuple[bool, ...] = ()
    serial: int = 0  # tells two calls in one program apart that are equal in all else
    origin: int = 0  # the serial of the user's call that this one is a derivative of, or is
    is_derivative: bool = False

    @property
    def is_zeroed(self) -> bool:
        """Whether this rank's results are zeros."""
        return self.is_for_root and rank() != self.root_rank

    def full_names(self) -> list[str | None]:
        """The names under which ranks match operations; None for those that the engine numbers."""
        return [None if name is None else f"{self.prefix}.{name}" for name in self.names]

    def following(self, **changes: Any) -> ProgramCall:
        """The call that a gradient needs, under a name that tells it from this one."""
        own = self.names[:1] if self.is_group else self.names
        names = tuple(None if name is None else f"{name}.grad" for name in own)
        return replace(self, names=names, is_derivative=True, **changes)


def call_on(
    process_set: ProcessSet, call: Call, names: Sequence[str | None], is_group: bool = False
) -> ProgramCall:
    """A checked call, with its names, on a process set.

    Raises:
        ValueError: this process is not in the set, or there is no world.
    """
    set_rank, set_size = process_set.rank(), process_set.size()
    if set_rank is None or set_rank < 0 or set_size is None:
        raise ValueError(
            f"{call.title}: this process is not in {process_set}, or the set is not registered; "
            "give it to init or add_process_set on all ranks"
        )
    return ProgramCall(
        call.kind,
        call.process_set,
        call.op,
        call.prescale,
        call.postscale,
        call.root_rank,
        is_group,
        call.link_format,
        names=tuple(names),
        set_size=set_size,
        set_rank=set_rank,
    )


_DTYPES = {jnp.dtype(dtype.name.lower()): None for dtype in Dtype}  # in order
_COMPLEX = {jnp.dtype("complex64"), jnp.dtype("complex128")}


def check_dtypes(call: ProgramCall, arrays: Sequence[Any]) -> None:
    """``ValueError`` if an array is of a dtype that the engine has not.

    Arrays may be traced. A number has no dtype before it is an array.
    """
    for position, array in enumerate(arrays):
        dtype = getattr(array, "dtype", None)
        if dtype is None or dtype in _DTYPES:
            continue
        if dtype in _COMPLEX:
            check_complex(call, title_of(call, position))
            continue
        found = f"{title_of(call, position)}: the array's dtype {dtype} is not supported; "
        if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
            raise ValueError(
                f"{found}broadcast_parameters gives all ranks the root's keys; inside of jit use "
                "jax.random.key_data(keys).view('int32')"
            )
        raise ValueError(f"{found}supported are {', '.join(map(str, _DTYPES))}")


def title_of(call: ProgramCall, position: int) -> str:
    """An array of a call, as errors name it."""
    names = call.names[1:] if call.is_group and len(call.names) > 1 else call.names
    name = names[min(position, len(names) - 1)]
    return call.prefix if name is None else f"{call.prefix} {name!r}"


def result_rows(call: ProgramCall, position: int, rows: int) -> int:
    """How many rows the result of a call has on this rank, for an array of ``rows`` rows."""
    if call.row.result is Result.ALL_ROWS:
        return call.rows[position] if call.rows else rows * call.set_size
    if call.row.result is Result.OWN_ROWS:
        part = own_part(rows, call.set_rank, call.set_size)
        return int(part.stop - part.start)
    return rows


Array = NDArray[Any]

_ALIGNMENT = 64  # JAX uses memory with this alignment without a copy


class _AligningAdapter(NumpyAdapter):
    def empty_like(self, tensor: Array) -> Array:
        bytes_ = np.empty(tensor.nbytes + _ALIGNMENT, np.uint8)
        begin = -bytes_.ctypes.data % _ALIGNMENT
        return bytes_[begin : begin + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)


_calls = ArrayCalls(_AligningAdapter())


def run(*arrays: Any, call: ProgramCall) -> list[jax.Array]:
    """A call on arrays of JAX that are there, or are on their way; blocks until it is done.

    Results lie where JAX puts arrays. A result that has the shape of an input to which the program
    has given a sharding, over one device or several of this process, has the same sharding.
    """
    results = run_on_host(call, arrays)
    if not call.keeps_shape:
        return [jnp.asarray(result) for result in results]
    errors = [jnp.asarray(error) for error in results[len(arrays) :]]
    return [*map(_place_like, arrays, results), *errors]


def run_on_host(call: ProgramCall, arrays: Sequence[Any]) -> list[Array]:
    """A call on anything that NumPy can view: a result for each array, then errors."""
    results = _run(call, arrays)
    if call.row.result is Result.EXCHANGED_ROWS:
        results = results[::2]  # between them are the row counts
    return [np.zeros_like(result) for result in results] if call.is_zeroed else results


def _run(call: ProgramCall, arrays: Sequence[Any], splits: Sequence[int] = ()) -> list[Array]:
    on_host = [np.asarray(array, order="C") for array in arrays]
    errors = [
        np.zeros(array.shape, np.float32) if keeps else None
        for array, keeps in zip(on_host, call.keeps_errors, strict=False)
    ]
    results = _calls.run(call, call.full_names(), on_host, splits, errors)
    return [*results, *(error for error in errors if error is not None)]


def _place_like(array: Any, result: Array) -> jax.Array:
    if isinstance(array, jax.Array) and not isinstance(array.sharding, SingleDeviceSharding):
        return jax.device_put(result, array.sharding)
    return jnp.asarray(result)


def run_alltoall(call: ProgramCall, array: Any, splits: list[int]) -> tuple[jax.Array, jax.Array]:
    """The rows received, and how many came from each rank of the set."""
    check_dtypes(call, [array])
    received, counts = _run(call, [array], splits)
    return jnp.asarray(received), jnp.asarray(counts)
