"""The settings that ``create_settings`` of the executors returns."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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
    nics: tuple[str, ...] = ()
    discovery: HostDiscovery | None = None


def write_identity(path: str, text: str) -> None:
    """Write a private key to ``path`` for this user alone, if there is no such file."""
    private = partial(os.open, mode=0o600)
    with suppress(FileExistsError), open(path, "x", encoding="ascii", opener=private) as file:
        file.write(text)
