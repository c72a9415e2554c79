"""``--debug-rank``: the command of one rank under a debugger. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

# Python's options that take the next word as their value.
_WITH_VALUE = ("-W", "-X")


def debugged(argv: Sequence[str], port: int | None) -> tuple[str, ...]:
    """``argv``, a Python with a script or module, under pdb, or under debugpy at ``port``.

    pdb takes over at an uncaught exception or ``breakpoint()``. debugpy waits for a client first.

    Raises:
        ValueError: it is another command.
    """
    if not re.fullmatch(r"python[0-9.]*", Path(argv[0]).name):
        raise ValueError(f"--debug-rank: {argv[0]}: expected a command python SCRIPT")
    index = 1
    while index < len(argv) and argv[index].startswith("-") and argv[index] != "-m":
        if argv[index] == "-c":
            raise ValueError("--debug-rank: python -c: expected a script or a module")
        index += 2 if argv[index] in _WITH_VALUE else 1
    if index >= len(argv):
        raise ValueError("--debug-rank: python without a script or a module")
    debugger = "-m pdb -c continue"
    if port is not None:
        debugger = f"-m debugpy --listen 127.0.0.1:{port} --wait-for-client"
    return (*argv[:index], *debugger.split(), *argv[index:])
