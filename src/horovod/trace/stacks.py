"""Python's stacks in recordings: written for the engine's threads, and read again.

``faulthandler`` writes the stacks of all threads on a signal, without Python's lock. The engine's
tracer thread sends that signal to a fork of the process, so it interrupts no thread, and a stack
that changes at that moment can only crash the fork.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import re
import signal
from dataclasses import dataclass
from pathlib import PurePath

_FIRST_OFFSET = 8  # from SIGRTMIN; lower ones are in use more often
_CALL = re.compile(r'  File "(?P<path>.*)", line (?P<line>\d+) in (?P<function>.*)')
_BEGIN = "most recent call first"
_OF_OTHERS = ("site-packages", "dist-packages")
_PACKAGE = PurePath(__file__).parents[1]  # outside site-packages in an editable install
_OF_AUTOGRAPH = "__autograph_generated_file"  # TensorFlow's copy of a function of the program
_NO_FILE = "<string>"
_NOTHING = (0, -1)
_prepared = _NOTHING  # signal and descriptor


def prepare_stacks() -> tuple[int, int]:
    """The signal and the descriptor to read; ``(0, -1)`` if stacks are not possible here."""
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
    """Undo ``prepare_stacks``; the signal must not be sent any more."""
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


@dataclass(frozen=True)
class Call:
    """One line of a stack."""

    path: str
    line: int
    function: str

    @property
    def is_of_program(self) -> bool:
        """Whether the code is neither of an installed package nor of Python itself."""
        path = PurePath(self.path)
        is_library = any(part.startswith("python3") for part in path.parts[:-1])
        is_frozen = self.path.startswith("<frozen")
        is_installed = any(part in _OF_OTHERS for part in path.parts)
        is_copy = path.name.startswith(_OF_AUTOGRAPH)
        is_of_others = is_library or is_frozen or is_installed or is_copy
        return not (is_of_others or path.is_relative_to(_PACKAGE))


def main_thread(stacks: str) -> list[Call]:
    """The calls of the main thread, which comes last, the innermost first."""
    _, found, text = stacks.rpartition(_BEGIN)
    calls: list[Call] = []
    for line in text.splitlines()[1:] if found else ():
        match = _CALL.fullmatch(line)
        if match is None:
            break
        calls.append(Call(match["path"], int(match["line"]), match["function"]))
    return calls


def own_call(calls: list[Call]) -> Call | None:
    """The innermost call of the program itself, in a file if there is one.

    Code without a file is that of ``python -c``, or what a library such as ``dataclasses`` made.
    """
    own = [call for call in calls if call.is_of_program]
    return next((call for call in own if call.path != _NO_FILE), own[0] if own else None)
