"""The part of the search path that was put ahead of Python's own modules."""

from __future__ import annotations

import os
import sys
import sysconfig
from itertools import takewhile

__all__ = ["path_ahead"]


def path_ahead() -> tuple[str, ...]:
    """Where this process finds modules before those of its Python, such as in ``PYTHONPATH``."""
    library = sysconfig.get_path("stdlib")

    def is_ahead(path: str) -> bool:
        is_archive = path.endswith(".zip") and os.path.dirname(path) == os.path.dirname(library)
        return path != library and not is_archive

    return tuple(os.path.abspath(path) for path in takewhile(is_ahead, sys.path) if path)
