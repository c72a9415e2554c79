"""Which host names mean this machine, and the lists of hosts that follow from it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from horovod.core.base.rank_info import RankInfo
from horovod.launch.model.hosts import HostSlots, assign_ranks
from horovod.launch.workers.addresses import is_own_address, resolve, resolve_all


@dataclass(frozen=True)
class Placement:
    """The positions of workers; ``remote`` has the addresses of other machines by name."""

    slots: tuple[RankInfo, ...]
    remote: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def place(hosts: Sequence[HostSlots], process_count: int) -> Placement:
    """Positions of ``process_count`` workers; all names of this machine are one host, the first.

    Raises:
        ValueError: there are too few slots.
    """
    # Only names that are needed are looked up.
    names = dict.fromkeys(slot.hostname for slot in assign_ranks(hosts, process_count))
    merged, remote = recognise(hosts, list(names))
    slots = assign_ranks(merged, process_count)
    used = {slot.hostname for slot in slots}
    return Placement(slots, {name: found for name, found in remote.items() if name in used})


def recognise(
    hosts: Sequence[HostSlots], names: Sequence[str]
) -> tuple[tuple[HostSlots, ...], dict[str, tuple[str, ...]]]:
    """``hosts`` with this machine once, under the first of ``names`` that mean it.

    The second result has the addresses of those of ``names`` that mean other machines.
    """
    unknown = [name for name in names if not _says_this_machine(name)]
    addresses = resolve_all(unknown)
    remote = {name: addresses[name] for name in unknown if not _has_own(addresses[name])}
    return _merged(hosts, [name for name in names if name not in remote]), remote


def _merged(hosts: Sequence[HostSlots], here: Sequence[str]) -> tuple[HostSlots, ...]:
    slots: dict[str, int] = {}
    for host in hosts:
        name = here[0] if host.hostname in here else host.hostname
        slots[name] = slots.get(name, 0) + host.slots
    return tuple(HostSlots(name, count) for name, count in slots.items())


def is_this_machine(hostname: str) -> bool:
    """Whether ``hostname`` is this machine; may ask DNS."""
    return _says_this_machine(hostname) or _has_own(resolve(hostname))


def _says_this_machine(hostname: str) -> bool:
    name = hostname.lower()
    own = os.uname().nodename.lower()
    return name in ("localhost", own, own.partition(".")[0]) or name.startswith("127.")


def _has_own(addresses: Sequence[str]) -> bool:
    return any(map(is_own_address, addresses))
