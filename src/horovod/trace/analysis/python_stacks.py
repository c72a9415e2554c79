"""Python's stacks as ``faulthandler`` writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

__all__ = ["Call", "main_thread", "own_call"]

_CALL = re.compile(r'  File "(?P<path>.*)", line (?P<line>\d+) in (?P<function>.*)')
_BEGIN = "most recent call first"
_OF_OTHERS = ("site-packages", "dist-packages")
_PACKAGE = PurePath(__file__).parents[2]  # in neither of these where it is installed editable


@dataclass(frozen=True)
class Call:
    """One line of a stack."""

    path: str
    line: int
    function: str

    @property
    def is_of_program(self) -> bool:
        """Whether it is neither of an installed package nor of Python itself."""
        path = PurePath(self.path)
        is_library = any(part.startswith("python3") for part in path.parts[:-1])
        is_frozen = self.path.startswith("<frozen")
        is_installed = any(part in _OF_OTHERS for part in path.parts)
        return not (is_library or is_frozen or is_installed or path.is_relative_to(_PACKAGE))


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
    """The innermost call of the program itself."""
    return next((call for call in calls if call.is_of_program), None)
