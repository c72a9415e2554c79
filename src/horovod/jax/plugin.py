"""Registers the native plugin with JAX, if this jaxlib takes it.

Programs on the CPU have its asynchronous handler; those on CUDA GPUs one that works with XLA's
stream.

XLA refuses a handler that was made for a version of its interface that it does not know, and then
JAX's cpu backend does not start at all. So in versions outside of our tests the plugin is first
registered and run in a process of its own.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from pathlib import Path

import jax

from horovod.core.base.plugins import works
from horovod.core.built import cuda_built
from horovod.core.port import port_address
from horovod.settings import Settings

TARGET = "horovod_jax_collective"

_LIBRARY = Path(__file__).parent.parent / "libhorovod_jax.so"
_TRIED = ((0, 6), (0, 12))  # the oldest and the newest version that our tests have run with
_TEST_VALUE = 7
_TEST_SCRIPT = f"""
import os
os.environ["JAX_PLATFORMS"] = "cpu"
import ctypes, sys, jax, jax.numpy as jnp
handler = jax.ffi.pycapsule(ctypes.CDLL(sys.argv[1]).horovod_jax_self_test)
jax.ffi.register_ffi_target("horovod_jax_self_test", handler, platform="cpu")
with jax.default_device(jax.devices("cpu")[0]):
    call = jax.ffi.ffi_call("horovod_jax_self_test", jax.ShapeDtypeStruct((), jnp.int32))
    sys.exit(int(jax.jit(call)(jnp.int32({_TEST_VALUE}))) != {_TEST_VALUE})
"""


_choice_lock = threading.Lock()  # a cached function may run once in each of several threads


def is_native() -> bool:
    """Whether compiled programs call the plugin; decided at the first call, which logs a refusal.

    They do, unless ``HOROVOD_JAX_NATIVE_OPS=0``, or the plugin does not work with this jaxlib, or
    the default device is neither a CPU nor a CUDA GPU. Then one ordered host callback after the
    other does the work.
    """
    with _choice_lock:
        return _is_chosen()


@functools.cache
def _is_chosen() -> bool:
    if not Settings.from_env().jax_native_ops:
        return False
    version: str = jax.devices()[0].client.platform_version
    platforms = platforms_for(jax.default_backend(), version, cuda_built())
    try:
        if not platforms:
            raise ImportError(f"the plugin has none for {jax.default_backend()} ({version})")
        _register(platforms)
    except ImportError as error:
        logging.getLogger("horovod").warning(
            "Horovod: JAX's collectives run as host callbacks, which is slower: %s", error
        )
        return False
    return True


def platforms_for(backend: str, version: str, has_cuda: bool) -> tuple[str, ...]:
    """XLA's names of the platforms whose programs call the plugin; none where it has no handler.

    Args:
        backend: JAX's name of the default one.
        version: what its client says of its platform; tells CUDA from ROCm, which are both "gpu".
        has_cuda: the engine reaches CUDA GPUs.
    """
    if backend == "cpu":
        return ("cpu",)
    is_cuda = backend in ("gpu", "cuda") and "cuda" in version.lower()
    return ("cpu", "CUDA") if is_cuda and has_cuda else ()


def _register(platforms: tuple[str, ...] = ("cpu",)) -> None:
    if not works(_LIBRARY, "jax", jax.__version__, _TRIED, _TEST_SCRIPT):
        raise ImportError(f"the plugin does not work with JAX {jax.__version__}")
    try:
        library = ctypes.CDLL(str(_LIBRARY))
        attach = library.horovod_jax_attach
        handlers = {
            "cpu": library.horovod_jax_collective,
            "CUDA": library.horovod_jax_collective_on_cuda,
        }
    except (OSError, AttributeError) as error:
        raise ImportError(f"the plugin cannot be opened: {error}") from error
    attach.argtypes, attach.restype = [ctypes.c_void_p], None
    attach(port_address())
    for platform in platforms:
        capsule = jax.ffi.pycapsule(handlers[platform])
        jax.ffi.register_ffi_target(TARGET, capsule, platform=platform)
