"""Makes ``backend="horovod"`` known to ``torch.distributed``; torch calls it when it is imported.

The entry point is in the group ``torch.backends``. It must cost nothing for programs that never ask
for the backend, so everything else is imported when the first process group is made.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

NAME = "horovod"


def register() -> None:
    """Register the backend with the torch that is being imported, unless it is known already."""
    try:
        from torch.distributed import Backend, is_available
    except ImportError:  # a torch without torch.distributed
        return
    if is_available() and not hasattr(Backend, NAME.upper()):
        Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, _: Any = None) -> Any:
    # By its name: this module is below all bindings, so that torch can load it alone.
    return import_module("horovod.torch.distributed").create(options)
