"""The hosts that a discovery finds: its answers as text, and what holds while it has none. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

_LINE = re.compile(r"(\w[\w.-]*)(?::([0-9]{1,6}))?", re.ASCII)


def parse_found_hosts(text: str, slots_per_host: int | None) -> dict[str, int]:
    """Hosts of lines ``host`` or ``host:slots`` in their order; repeated and empty lines are fine.

    ``slots_per_host`` is for lines without a number. A host with 0 slots counts as not listed.

    Raises:
        ValueError: a line is something else, lacks a number, or contradicts an earlier one.
    """
    hosts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.strip():
            name, slots = _parse_line(f"line {number}, {_short(words)!r}", words, slots_per_host)
            if hosts.setdefault(name, slots) != slots:
                raise ValueError(
                    f"line {number}, {_short(words)!r}: an earlier line says {name}:{hosts[name]}"
                )
    return {name: slots for name, slots in hosts.items() if slots > 0}


def _parse_line(where: str, words: str, slots_per_host: int | None) -> tuple[str, int]:
    match = _LINE.fullmatch(words)
    if match is None:
        raise ValueError(f"{where}: expected host or host:slots")
    if match[2] is not None:
        return match[1], int(match[2])
    if slots_per_host is None:
        raise ValueError(f"{where}: no number of slots; print {words}:N, or give --slots-per-host")
    return match[1], slots_per_host


def _short(line: str) -> str:
    return line if len(line) <= 60 else f"{line[:57]}..."


class Trouble(Enum):
    """Why a discovery has no answer."""

    FAILING = "fails"
    SLOW = "is too slow"
    GARBAGE = "prints what is not a list of hosts"


@dataclass(frozen=True)
class Finding:
    """The result of one call of the discovery.

    ``hosts`` is a good answer. ``log`` is a line for the user, empty unless something changed.
    ``error``: there has never been an answer, so the job cannot begin, or, if it ``is_final``,
    there will be none any more.
    """

    hosts: Mapping[str, int] | None = None
    log: str = ""
    error: str = ""
    is_final: bool = False


class Discovery:
    """The last good answer of ``source``. Each trouble, and its end, is reported once."""

    def __init__(self, source: str, slots_per_host: int | None) -> None:
        self.hosts: Mapping[str, int] | None = None
        self._source = source
        self._slots_per_host = slots_per_host
        self._trouble: Trouble | None = None

    def answered(self, text: str) -> Finding:
        """It has printed ``text``."""
        try:
            self.hosts = parse_found_hosts(text, self._slots_per_host)
        except ValueError as error:
            return self.failed(Trouble.GARBAGE, str(error))
        log = f"{self._source} works again" if self._trouble else ""
        self._trouble = None
        return Finding(self.hosts, log)

    def failed(self, trouble: Trouble, text: str) -> Finding:
        """There is no answer; ``text`` says more."""
        if self.hosts is None:
            return Finding(error=f"{self._source} {trouble.value}: {text}")
        is_new = trouble is not self._trouble
        self._trouble = trouble
        said = f"{self._source} {trouble.value}: {text}; the last good answer is kept"
        return Finding(log=said if is_new else "")
