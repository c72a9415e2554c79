"""Python's stacks for threads of the engine, which must not wait for Python's lock.

``faulthandler`` writes the stacks of all threads when it gets a signal, whoever holds the lock. The
engine's scribe sends that signal to a copy of the process: no thread is interrupted, and where one
changes its frames at that moment, it is the copy that stumbles over them.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal

__all__ = ["prepare_stacks", "release_stacks"]

_FIRST_OFFSET = 8  # from SIGRTMIN; lower ones are in use more often


_NOTHING = (0, -1)
_prepared = _NOTHING  # signal and descriptor


def prepare_stacks() -> tuple[int, int]:
    """The signal and the descriptor to read; ``(0, -1)`` where that cannot be done."""
    global _prepared
    number = _free_signal()
    if _prepared != _NOTHING or not number or not hasattr(os, "memfd_create"):
        return _prepared
    try:
        memory = os.memfd_create("horovod-stacks")
    except OSError:
        return _NOTHING
    try:
        fcntl.fcntl(memory, fcntl.F_SETFL, os.O_APPEND)
        faulthandler.register(number, file=memory, all_threads=True)
    except (OSError, RuntimeError, ValueError):
        os.close(memory)
        return _NOTHING
    _prepared = (number, memory)
    return _prepared


def release_stacks() -> None:
    """Nobody sends the signal any more."""
    global _prepared
    (number, memory), _prepared = _prepared, _NOTHING
    if number:
        faulthandler.unregister(number)
        os.close(memory)


def _free_signal() -> int:
    """A real-time signal that has no handler."""
    first = int(getattr(signal, "SIGRTMIN", 0))
    last = int(getattr(signal, "SIGRTMAX", 0))
    for number in range(first + _FIRST_OFFSET, last):
        if signal.getsignal(number) == signal.SIG_DFL:
            return number
    return 0
