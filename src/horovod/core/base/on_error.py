"""Blocks that are undone if they fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call ``undo`` if the block raises anything, Ctrl-C too; the error goes on."""
    try:
        yield
    except BaseException:
        undo()
        raise
