"""The stand-ins for libcuda and libnccl, for Python, and a framework that uses them.

Programs with ``environment(folder)`` find them like CUDA's driver and NCCL. In such a
program ``PretendGpu`` is a GPU with a stream, and ``PretendTensor`` a framework's tensor on it.
NCCL's stand-in supports only ranks of one process.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROOT = Path(__file__).parents[3]
SOURCES = _ROOT / "tests" / "support" / "stand_ins"

_KINDS = {"f": 2, "i": 0, "u": 1}  # DLPack's codes
_CUDA = 2
_Work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
PATIENCE_S = 500


def build(folder: Path) -> None:
    """Build the two libraries in ``folder``, under the names of the real ones."""
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread"]
    compiler += ["-I", str(_ROOT / "engine")]
    libraries = {
        "libcuda.so.1": ["cuda_stand_in.cc", "cuda_memory.cc", "cuda_model.cc", "ptx_machine.cc"],
        "libnccl.so.2": ["nccl_stand_in.cc", f"-L{folder}", "-l:libcuda.so.1"],
    }
    for name, parts in libraries.items():
        inputs = [str(SOURCES / part) if part.endswith(".cc") else part for part in parts]
        target = [f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run([*compiler, *inputs, *target], check=True, timeout=500)


def environment(folder: Path, gpus: int) -> dict[str, str]:
    """The environment of a program that sees ``count`` GPUs."""
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "STAND_IN_GPUS": str(gpus)}


class PretendGpu:
    """One of the GPUs, with a stream."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.cuda.stand_in_host_address.argtypes = [ctypes.c_uint64]
        self.cuda.stand_in_host_address.restype = ctypes.c_void_p
        context = ctypes.c_void_p()
        self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)
        self.cuda.cuCtxPushCurrent_v2(context)
        self.stream = ctypes.c_void_p()
        self.cuda.cuStreamCreateWithPriority(ctypes.byref(self.stream), 0, 0)

    def tensor(self, values: Any, dtype: str = "float32") -> PretendTensor:
        array = np.asarray(values, dtype)
        tensor = self.empty(array.shape, array.dtype)
        tensor.on_host()[...] = array
        return tensor

    def empty(self, shape: tuple[int, ...], dtype: Any) -> PretendTensor:
        tensor = PretendTensor(self, shape, np.dtype(dtype))
        size = max(1, tensor.on_gpu_bytes)
        assert self.cuda.cuMemAlloc_v2(ctypes.byref(tensor.address), ctypes.c_size_t(size)) == 0
        return tensor

    def synchronize(self) -> None:
        """Wait until the stream has done all its work."""
        self.cuda.stand_in_synchronize(self.stream, self.number)

    def calls(self, function: str) -> int:
        count: int = self.cuda.stand_in_calls(function.encode())
        return count

    def hold(self) -> Callable[[], None]:
        """Stop the stream until the returned function is called."""
        released = threading.Event()
        wait = _Work(lambda _: released.wait(PATIENCE_S) and None)
        _kept.append(wait)
        self.cuda.stand_in_enqueue(self.stream, wait, None)
        return released.set


class PretendTensor:
    """Dense memory of a GPU."""

    def __init__(self, gpu: PretendGpu, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.gpu, self.shape, self.dtype = gpu, shape, dtype
        self.address = ctypes.c_uint64()
        self.c_shape = (ctypes.c_int64 * max(1, len(shape)))(*shape)

    @property
    def on_gpu_bytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def on_host(self) -> NDArray[Any]:
        """Its memory as the CPU sees it, through the stand-in."""
        address = self.gpu.cuda.stand_in_host_address(self.address)
        memory = (ctypes.c_char * self.on_gpu_bytes).from_address(address)
        return np.frombuffer(memory, self.dtype).reshape(self.shape)

    def tolist(self) -> Any:
        """Its values after all work of the stream."""
        self.gpu.synchronize()
        return self.on_host().tolist()


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dims_count", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


_Read = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_DLTensor))
_Stream = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class _ExchangeApi(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("unused", ctypes.c_void_p * 4),
        ("read", _Read),
        ("stream", _Stream),
    )


def exchange_capsule(gpu: PretendGpu) -> Any:
    """DLPack's exchange table for ``PretendTensor``, like a framework's."""

    def read(tensor: PretendTensor, out: Any) -> int:
        out[0] = _DLTensor(
            data=tensor.address.value,
            device_type=_CUDA,
            device_id=tensor.gpu.number,
            dims_count=len(tensor.shape),
            code=_KINDS[tensor.dtype.kind],
            bits=8 * tensor.dtype.itemsize,
            lanes=1,
            shape=tensor.c_shape,
        )
        return 0

    def stream(_type: int, _device: int, out: Any) -> int:
        out[0] = gpu.stream
        return 0

    table = _ExchangeApi(major=1, read=_Read(read), stream=_Stream(stream))
    _kept.append(table)
    new = ctypes.pythonapi.PyCapsule_New
    new.argtypes, new.restype = (
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        ctypes.py_object,
    )
    return new(ctypes.addressof(table), b"dlpack_exchange_api", None)


_kept: list[Any] = []
