"""Which GPUs this machine has for experiments."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

__all__ = ["gpu_ids"]

_TIMEOUT_S = 30


def gpu_ids(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs as CUDA_VISIBLE_DEVICES names them: what it holds if it is set, else all."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return _usable(visible)
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return ()
    try:
        listed = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=_TIMEOUT_S, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):  # a driver that does not answer
        return ()
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return tuple(map(str, range(count)))


def _usable(visible: str) -> tuple[str, ...]:
    """CUDA reads the list up to the first entry that is none."""
    usable: list[str] = []
    for entry in (part.strip() for part in visible.split(",")):
        if not entry or entry.startswith("-") or entry in usable:
            break
        usable.append(entry)
    return tuple(usable)
