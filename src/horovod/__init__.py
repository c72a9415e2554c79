"""Distributed data-parallel training: import ``horovod.torch`` or ``horovod.numpy``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.launch.run.function import run

__all__ = ["__version__", "run"]

# The one place of the version: the build reads it here.
__version__ = "1.0.0rc1"


def __getattr__(name: str) -> Any:
    # Importing it takes longer than all other imports together, and few programs use it.
    if name == "run":
        from horovod.launch.run.function import run

        return run
    # Every framework has a module, with all of its calls.
    hint = "" if name.startswith("_") else "; import horovod.torch or another binding as hvd"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
