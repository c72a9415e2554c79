"""Hosts, slots and interfaces as text, and which rank each slot becomes. Pure functions.

Ranks fill the hosts in the order given, and the slots of a host consecutively.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from horovod.core.base.rank_info import RankInfo, rank_infos

_HOST = re.compile(r"(\w[\w.-]*):([0-9]{1,6})", re.ASCII)
_HOSTFILE_LINE = re.compile(r"(\w[\w.-]*)\s+slots\s*=\s*([0-9]{1,6})", re.ASCII)


class HostSlots(NamedTuple):
    """A host and how many processes it may run."""

    hostname: str
    slots: int


def parse_hosts(text: str) -> tuple[HostSlots, ...]:
    """Hosts of ``name:slots[,name:slots...]``; a name that comes twice keeps its first place.

    Raises:
        ValueError: a part is not ``name:slots`` with at least one slot.
    """
    parts = [part.strip() for part in text.split(",")]
    expected = "expected name:slots[,name:slots...] with at least one slot each, for example"
    return _parse(_HOST, parts, f"{expected} localhost:4")


def parse_hostfile(text: str) -> tuple[HostSlots, ...]:
    """Hosts of a file's lines ``name slots=N``; empty lines and comments after ``#`` are skipped.

    Raises:
        ValueError: a line is something else, or there is none.
    """
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    hosts = _parse(_HOSTFILE_LINE, [line for line in lines if line], "expected name slots=N")
    if not hosts:
        raise ValueError("the hostfile names no host; expected lines of the form name slots=N")
    return hosts


def interface_names(texts: Iterable[str]) -> tuple[str, ...]:
    """The names of network interfaces in texts with one or, between commas, several; each once."""
    names = [name.strip() for text in texts for name in text.split(",")]
    return tuple(dict.fromkeys(name for name in names if name))


def chosen_interfaces(nics: str | Iterable[str] | None) -> tuple[str, ...]:
    """The names in a collection, or in one string with commas; none for None."""
    return interface_names([nics] if isinstance(nics, str) else sorted(nics or ()))


def _parse(pattern: re.Pattern[str], parts: Sequence[str], expected: str) -> tuple[HostSlots, ...]:
    slots: dict[str, int] = {}
    for part in parts:
        match = pattern.fullmatch(part)
        if match is None or int(match[2]) < 1:
            raise ValueError(f"invalid host input {part!r}: {expected}")
        slots[match[1]] = slots.get(match[1], 0) + int(match[2])
    return tuple(HostSlots(name, count) for name, count in slots.items())


def counted(count: int, what: str = "process") -> str:
    """``1 process``, ``2 processes``, ``3 ranks``."""
    ending = "es" if what.endswith("s") else "s"
    return f"{count} {what}{ending if count != 1 else ''}"


def hosts_text(hosts: Iterable[HostSlots]) -> str:
    """``node-1:2, node-2:4``."""
    return ", ".join(f"{host.hostname}:{host.slots}" for host in hosts)


def node_of(hostname: str) -> str:
    """The machine of a host. Several embedded agents of one machine are ``node/agent``."""
    return hostname.partition("/")[0]


def assign_ranks(hosts: Sequence[HostSlots], process_count: int) -> tuple[RankInfo, ...]:
    """The positions of ``process_count`` processes; later hosts stay empty if earlier ones suffice.

    Raises:
        ValueError: the hosts have too few slots.
    """
    check_slots(hosts, process_count)
    nodes = [host.hostname for host in hosts for _ in range(host.slots)]
    return rank_infos(nodes[:process_count])


def check_slots(hosts: Sequence[HostSlots], process_count: int) -> None:
    """Raise ValueError if the hosts have too few slots for ``process_count`` processes."""
    available = sum(host.slots for host in hosts)
    if available < process_count:
        raise ValueError(
            f"{process_count} processes were asked for, but the hosts have {available} slots: "
            f"{hosts_text(hosts)}; start fewer with -np, or give the hosts more with -H"
        )
