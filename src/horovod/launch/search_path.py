"""The two parts of the search path: what was put ahead of Python's own modules, and the rest."""

from __future__ import annotations

import os
import sys
import sysconfig
from itertools import takewhile

__all__ = ["path_ahead", "path_of_python"]


def path_ahead() -> tuple[str, ...]:
    """Where this process finds modules before those of its Python, such as in ``PYTHONPATH``."""
    return tuple(os.path.abspath(path) for path in _ahead() if path)


def path_of_python() -> tuple[str, ...]:
    """What follows: the standard library, and what is installed."""
    return tuple(sys.path[len(_ahead()) :])


def _ahead() -> list[str]:
    library = sysconfig.get_path("stdlib")

    def is_ahead(path: str) -> bool:
        is_archive = path.endswith(".zip") and os.path.dirname(path) == os.path.dirname(library)
        return path != library and not is_archive

    return list(takewhile(is_ahead, sys.path))
