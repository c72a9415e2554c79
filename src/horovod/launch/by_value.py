"""Pickling for another process of this machine, also of what that process could not import.

Cloudpickle sends functions and classes of ``__main__`` and of function bodies by value and refers
to all others by module name. A module that was loaded from a file beside the search path (a test
file, a plug-in) has a name that says nothing elsewhere; what it defines goes by value, too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, BinaryIO

import cloudpickle

__all__ = ["dump", "dumps"]

# The registry of cloudpickle belongs to the process.
_lock = threading.Lock()


def dump(value: Any, file: BinaryIO) -> None:
    """Pickle ``value`` into ``file``; raises what its parts raise."""
    with _private_modules_by_value():
        cloudpickle.dump(value, file)


def dumps(value: Any) -> bytes:
    """``value`` pickled; raises what its parts raise."""
    with _private_modules_by_value():
        return bytes(cloudpickle.dumps(value))


@contextmanager
def _private_modules_by_value() -> Iterator[None]:
    with _lock:
        known = cloudpickle.list_registry_pickle_by_value()
        added = [m for m in _private_modules() if m.__name__ not in known]
        for module in added:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in added:
                cloudpickle.unregister_pickle_by_value(module)


def _private_modules() -> list[ModuleType]:
    """Modules of this process that another one with the same search path does not find."""
    roots = {os.path.realpath(entry or os.getcwd()) for entry in sys.path}
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and name == module.__name__ != "__main__"
        and _root(module) not in roots
        and not _is_found(name)
    ]


def _root(module: ModuleType) -> str:
    """The entry of the search path that would lead to the module's file."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return ""
    parts = module.__name__.count(".") + 1 + (os.path.basename(file) == "__init__.py")
    for _ in range(parts):
        file = os.path.dirname(file)
    return os.path.realpath(file)


def _is_found(name: str) -> bool:
    """Whether some finder knows the module's package: built in, frozen, or installed editable."""
    package = name.partition(".")[0]
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        try:
            if find_spec is not None and find_spec(package, None) is not None:
                return True
        except Exception:  # a finder of somebody else
            continue
    return False
