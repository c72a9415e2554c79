"""Distributed data-parallel training: import ``horovod.torch`` or ``horovod.numpy``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.launch.function import run

__all__ = ["__version__", "run"]

__version__: str


def __getattr__(name: str) -> Any:
    # Each of them costs more than everything else at start-up, and few ask for it.
    if name == "__version__":
        from importlib.metadata import version

        return version("horovod")
    if name == "run":
        from horovod.launch.function import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
