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
    roots = set(map(os.path.abspath, sys.path)) | set(map(os.path.realpath, sys.path))
    suspects = [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and name == module.__name__ != "__main__"
        and not ((root := _root(module)) and (root in roots or os.path.realpath(root) in roots))
    ]
    packages = {module.__name__.partition(".")[0] for module in suspects}
    unknown = {package for package in packages if not _is_found(package)}
    return [module for module in suspects if module.__name__.partition(".")[0] in unknown]


def _root(module: ModuleType) -> str:
    """The entry of the search path that would lead to the module's file; empty if none does."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return ""
    place, _, name = file.rpartition("/")
    stem = name.partition(".")[0]
    if stem == "__init__":
        place, _, stem = place.rpartition("/")
    *packages, last = module.__name__.split(".")
    if stem != last:
        return ""  # loaded under another name, such as the main script of multiprocessing
    for _ in packages:
        place = os.path.dirname(place)
    return place


def _is_found(package: str) -> bool:
    """Whether some finder knows the package: built in, frozen, or installed editable."""
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        try:
            if find_spec is not None and find_spec(package, None) is not None:
                return True
        except Exception:  # a finder of another package
            continue
    return False
