"""The id of a process's host: processes with the same id can share memory.

They are in the same namespaces of the same running system, so abstract Unix sockets, pids and user
ids mean the same to them. Host names prove nothing: two containers of one machine are two hosts,
and one machine with two names is one host.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from horovod.core.base.checked import Record, limited


@dataclass(frozen=True)
class HostId(Record):
    """``host`` is equal for processes that can share memory, ``network`` for those with the same
    network interfaces. An empty network is equal to no other.
    """

    host: Annotated[str, limited(1024)]
    network: Annotated[str, limited(1024)]


def this_host_id() -> HostId:
    """The id for this process."""
    system = _boot()
    net = _namespace("net")
    parts = (system, net, _namespace("pid"), _namespace("user"), str(os.geteuid()))
    return HostId("/".join(parts), f"{system}/{net}" if net else "")


def _boot() -> str:
    # Machines that were started from one snapshot have the same boot id but other names.
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    return f"{boot_id}@{os.uname().nodename}"


def _namespace(kind: str) -> str:
    try:
        found = os.stat(f"/proc/self/ns/{kind}")
    except OSError:  # this system has no such namespaces
        return ""
    return f"{found.st_dev}:{found.st_ino}"
