"""The import paths of the launcher that existing scripts and tools use; the code is elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod.core.base.later import imported_later
from horovod.core.base.replaced import explain_modules

if TYPE_CHECKING:
    from horovod.launch.compat.arguments import _HorovodArgs
    from horovod.launch.run.function import run

__all__ = ["_HorovodArgs", "run"]

explain_modules()

# ``python -m horovod.runner.launch`` passes here and does not need them.
_ARGUMENTS = "horovod.launch.compat.arguments"
__getattr__ = imported_later(
    __name__, {"run": "horovod.launch.run.function", "_HorovodArgs": _ARGUMENTS}
)
