"""The import paths of the launcher that existing scripts and tools use; the code is elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.launch.function import run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    # ``python -m horovod.runner.launch`` passes here and does not need it.
    if name == "run":
        from horovod.launch.function import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
