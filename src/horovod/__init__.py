"""Distributed data-parallel training: import ``horovod.torch`` or ``horovod.numpy``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.launch.function import run

__all__ = ["__version__", "run"]

__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # To look it up as metadata takes longer than everything else in ``init``, most of all where
        # archives lie on the search path, as in Spark's tasks.
        from horovod._native import VERSION

        return VERSION
    # This costs more than everything else at start-up, and few ask for it.
    if name == "run":
        from horovod.launch.function import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
