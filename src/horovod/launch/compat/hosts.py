"""Hosts, and the positions of processes on them, in upstream's classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod.launch.model.hosts import HostSlots, assign_ranks, parse_hostfile
from horovod.launch.model.hosts import parse_hosts as parsed


@dataclass(unsafe_hash=True)
class HostInfo:
    """A host and the number of processes it may run."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """The host of ``name:slots``. Raises ValueError."""
        hosts = parse_hosts(host_string)
        if len(hosts) != 1:
            raise ValueError(f"{host_string!r}: expected one host, name:slots")
        return hosts[0]


@dataclass(unsafe_hash=True)
class SlotInfo:
    """The position of one process in the world."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """``rank,size,local_rank,local_size,cross_rank,cross_size``."""
        numbers = (self.rank, self.size, self.local_rank, self.local_size)
        return ",".join(map(str, (*numbers, self.cross_rank, self.cross_size)))

    @staticmethod
    def from_response_string(response_string: str) -> SlotInfo:
        """The inverse, without the host's name. Raises ValueError."""
        try:
            numbers = map(int, response_string.split(","))
            rank, size, local_rank, local_size, cross_rank, cross_size = numbers
        except ValueError:
            expected = "expected six numbers with commas between them"
            raise ValueError(f"{response_string!r}: {expected}") from None
        return SlotInfo("", rank, local_rank, cross_rank, size, local_size, cross_size)


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """The hosts of ``name:slots[,name:slots...]``; a name that comes twice keeps its first place.

    Raises:
        ValueError: a part has another form.
    """
    return [HostInfo(host.hostname, host.slots) for host in parsed(hosts_string)]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """The names in ``hosts`` and, by name, their slots. Raises ValueError as ``parse_hosts``."""
    slots = {host.hostname: host.slots for host in parsed(hosts)}
    return list(slots), slots


def parse_host_files(filename: str) -> str:
    """The hosts of a file's lines ``name slots=N``, in the form that ``parse_hosts`` takes.

    Raises:
        ValueError: a line has another form.
        OSError: the file cannot be read.
    """
    hosts = parse_hostfile(Path(filename).read_text(encoding="utf-8"))
    return ",".join(f"{host.hostname}:{host.slots}" for host in hosts)


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """The positions of as many processes as there are slots, at most ``max_num_proc``, by rank.

    Raises:
        ValueError: there are fewer slots than ``min_num_proc``.
    """
    there = [HostSlots(host.hostname, host.slots) for host in hosts if host.slots > 0]
    count = sum(host.slots for host in there)
    wanted = count if max_num_proc is None else min(count, max_num_proc)
    slots = assign_ranks(there, max(wanted, min_num_proc))
    return [SlotInfo(**vars(slot)) for slot in slots]
