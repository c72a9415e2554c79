"""The import paths of the launcher that existing scripts and tools use; the code is elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod.core.base.replaced import explain_modules

if TYPE_CHECKING:
    from horovod.launch.compat.arguments import HorovodArgs as _HorovodArgs
    from horovod.launch.run.function import run

__all__ = ["_HorovodArgs", "run"]

explain_modules()


def __getattr__(name: str) -> Any:
    # ``python -m horovod.runner.launch`` passes here and does not need them.
    if name == "run":
        from horovod.launch.run.function import run

        return run
    if name == "_HorovodArgs":
        from horovod.launch.compat.arguments import HorovodArgs

        return HorovodArgs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
