"""The name of this machine's system, for recordings and reports."""

from __future__ import annotations

import os

__all__ = ["system_name"]


def system_name() -> str:
    """Such as ``Linux-6.1.0-x86_64``. Unlike ``platform.platform`` it starts no process."""
    system = os.uname()
    return f"{system.sysname}-{system.release}-{system.machine}"
