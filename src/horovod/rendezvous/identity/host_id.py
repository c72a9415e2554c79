"""Where a process is: what another one must have in common with it to share its memory.

Processes of one place are in the same namespaces of the same running system, so abstract Unix
sockets, pids and user numbers mean the same to both. Names given by a launcher prove nothing: two
containers of one machine are two places, two host names of one machine are one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HostId", "this_place"]


@dataclass(frozen=True)
class HostId:
    """``host`` is equal for processes that can share memory, ``network`` for those with the same
    interfaces; an empty network is like no other.
    """

    host: str
    network: str


def this_place() -> HostId:
    """The place of this process."""
    system = _boot()
    net = _namespace("net")
    parts = (system, net, _namespace("pid"), _namespace("user"), str(os.geteuid()))
    return HostId("/".join(parts), f"{system}/{net}" if net else "")


def _boot() -> str:
    # The name as well: machines started from one snapshot have the same boot id.
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    return f"{boot_id}@{os.uname().nodename}"


def _namespace(kind: str) -> str:
    try:
        found = os.stat(f"/proc/self/ns/{kind}")
    except OSError:  # no such namespaces here, so there are no two of them
        return ""
    return f"{found.st_dev}:{found.st_ino}"
