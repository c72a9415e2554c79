"""The settings that ``create_settings`` of the executors returns."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class HostDiscovery(Protocol):
    """Finds the machines on which workers may run now."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The workers that fit on each machine, by its address in Ray."""


@dataclass
class RaySettings:
    """Time limits of a start, and the network interfaces of ranks (empty: all usable ones).

    ``discovery`` finds the nodes of an elastic job, unless an executor overrides it.
    """

    timeout_s: float = 30.0
    placement_group_timeout_s: float = 100.0
    ssh_identity_file: str | None = None
    nics: tuple[str, ...] = field(default=())
    discovery: HostDiscovery | None = None


def write_identity(path: str, text: str) -> None:
    """Write a private key to ``path`` for this user alone, if there is no such file."""
    try:
        descriptor = os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
