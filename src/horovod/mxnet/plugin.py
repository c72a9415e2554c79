"""Gives collectives to MXNet's engine, through the native plugin of this build.

MXNet starts an operation when the arrays it reads and writes are ready, on a thread of its own, and
the plugin ends it when the engine is done: no thread waits in between, and none needs Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mxnet as mx

from horovod.core.port import port_address

_LIBRARY = Path(__file__).parent.parent / "libhorovod_mxnet.so"
_TRIED = (1, 9)  # the plugin knows layouts inside of MXNet that other versions may not have


_I32, _F64, _POINTER = ctypes.c_int32, ctypes.c_double, ctypes.POINTER(ctypes.c_void_p)


class PluginCall(ctypes.Structure):
    """A collective for the plugin; ``bindings/mxnet/job.h`` declares it in the same way."""

    order: Any = None  # an array that all calls of this name write; here it is kept alive

    _fields_ = (
        ("name", ctypes.c_char_p),
        *((name, _I32) for name in ("kind", "op", "root", "process_set")),
        *((name, _F64) for name in ("prescale", "postscale")),
        *((name, _I32) for name in ("priority", "is_group", "link_format")),
        *((name, _I32) for name in ("count", "splits_count", "orders_count")),
        ("dtypes", ctypes.POINTER(_I32)),
        *((name, _POINTER) for name in ("inputs", "outputs")),
        ("splits", ctypes.POINTER(ctypes.c_int64)),
        ("orders", _POINTER),
    )

    def give(
        self,
        inputs: Sequence[Any],
        dtypes: Sequence[int],
        outputs: Sequence[Any] | None,
        splits: Sequence[int],
        orders: Sequence[Any],
    ) -> None:
        """Point to arrays of MXNet and numbers; valid while those arrays are."""
        self.count = len(inputs)
        self.dtypes = (ctypes.c_int32 * len(dtypes))(*dtypes)
        self.inputs = _handles(inputs)
        if outputs is not None:
            self.outputs = _handles(outputs)
        self.splits_count = len(splits)
        self.splits = (ctypes.c_int64 * len(splits))(*splits)
        self.orders_count = len(orders)
        self.orders = _handles(orders)


class Results:
    """Results of a shape of their own, once the operation is done."""

    def __init__(self, address: int) -> None:
        self._address = ctypes.c_void_p(address)
        self._release = _plugin()[0].horovod_mxnet_release

    def take(self, index: int) -> Any:
        """The handle of a new array over one result, which can be taken once.

        Raises:
            MXNetError: the operation failed, or did not run.
        """
        handle = mx.base.NDArrayHandle()
        library, plugin = _plugin()
        taken = library.horovod_mxnet_take(plugin, self._address, index, ctypes.byref(handle))
        _check(library, taken)
        return handle

    def __del__(self) -> None:
        self._release(self._address)


def push(call: PluginCall) -> Results | None:
    """Give a collective to MXNet's engine, and return at once.

    Returns:
        Where the results will be, if the call has no outputs.

    Raises:
        MXNetError: MXNet refuses it.
    """
    library, plugin = _plugin()
    address = ctypes.c_void_p()
    _check(library, library.horovod_mxnet_push(plugin, ctypes.byref(call), ctypes.byref(address)))
    return None if address.value is None else Results(address.value)


def _handles(arrays: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*[array.handle for array in arrays])


def _check(library: ctypes.CDLL, status: int) -> None:
    if status != 0:
        raise mx.MXNetError(library.horovod_mxnet_last_error().decode())


@cache
def _plugin() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    version = tuple(int(part) for part in mx.__version__.split(".")[:2])
    if version != _TRIED:
        raise ImportError(
            f"horovod.mxnet works with MXNet 1.9; version {mx.__version__} is installed here"
        )
    try:
        library = ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        raise ImportError(f"horovod.mxnet: the plugin cannot be opened: {error}") from error
    pointer, reference = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    library.horovod_mxnet_attach.argtypes = [pointer, pointer, reference]
    library.horovod_mxnet_push.argtypes = [pointer, ctypes.POINTER(PluginCall), reference]
    library.horovod_mxnet_take.argtypes = [pointer, pointer, ctypes.c_int, reference]
    library.horovod_mxnet_release.argtypes = [pointer]
    library.horovod_mxnet_release.restype = None
    library.horovod_mxnet_last_error.restype = ctypes.c_char_p
    plugin = ctypes.c_void_p()
    status = library.horovod_mxnet_attach(
        mx.base._LIB._handle, port_address(), ctypes.byref(plugin)
    )
    if status != 0:
        raise ImportError(f"horovod.mxnet: {library.horovod_mxnet_last_error().decode()}")
    return library, plugin


_plugin()  # so that what is wrong here is known when horovod.mxnet is imported
