"""Presence files: one for each running rank of a job, in the folder of its recordings.

A rank writes it when its world begins and removes it at the end. The file of a killed rank is
recognised by its process, which does not exist any more or is another one. A new text in the file
``wanted`` asks all ranks of the job for recordings; a signal makes the ranks of this machine read
it. In a folder that the user has chosen, which machines may share, the ranks of a job on several
machines read it twice a second.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from horovod.core.base.checked import Fields
from horovod.core.base.own_files import OwnFolder
from horovod.trace.world_facts import world_and_rank

SUFFIX = ".running"
REQUEST_NAME = "wanted"
_VERSION = 1
_MOST_BYTES = 16 << 20
_MOST_PID = 1 << 22
_MOST_SIGNAL = 64
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class RankState(enum.Enum):
    """The state of a presence's process."""

    RUNNING = "running"
    STOPPED = "stopped"  # by SIGSTOP or a debugger
    GONE = "gone"
    ELSEWHERE = "elsewhere"  # on another machine or in another container, so unknown here


class Presence(NamedTuple):
    """A rank's presence file; ``name`` is its name in messages, ``world`` is as in recordings."""

    path: Path
    rank: int
    name: str
    pid: int
    start: str
    signal: int
    place: str
    hostname: str
    world: Mapping[str, Any]


def own_presence(rank: int, name: str, world: Mapping[str, object], signal: int) -> str:
    """The presence file of this process, as JSON; ``signal`` makes it read requests."""
    return json.dumps(
        {
            "horovod_running": _VERSION,
            "rank": rank,
            "name": name,
            "pid": os.getpid(),
            "start": _stat(os.getpid())[1],
            "signal": signal,
            "place": _own_place(),
            "hostname": platform.node(),
            "world": world,
        }
    )


def find_presences(folder: OwnFolder) -> list[Presence]:
    """The presences by rank, without files that are damaged or another user's."""
    found = []
    for name in folder.names():
        if name.endswith(SUFFIX):
            with contextlib.suppress(OSError, ValueError):
                found.append(_parsed(folder.path / name, folder.read(name, _MOST_BYTES)))
    return sorted(found, key=lambda presence: (presence.rank, presence.pid))


def _parsed(path: Path, data: bytes) -> Presence:
    """A checked presence. Raises BadMessageError."""
    fields = Fields.read("presence", data)
    fields.integer("horovod_running", _VERSION, _VERSION)
    world, rank = world_and_rank(fields)
    return Presence(
        path=path,
        rank=rank,
        pid=fields.integer("pid", 1, _MOST_PID),
        signal=fields.integer("signal", 0, _MOST_SIGNAL),
        world=world,
        **{name: fields.text(name) for name in ("name", "start", "place", "hostname")},
    )


def state_of(presence: Presence) -> RankState:
    """Whether the same process still exists."""
    if presence.place != _own_place():
        return RankState.ELSEWHERE
    state, start = _stat(presence.pid)
    if not state or state in "ZX" or start != presence.start:
        return RankState.GONE
    return RankState.STOPPED if state in "Tt" else RankState.RUNNING


def request_recordings(folder: OwnFolder, presences: Iterable[Presence], text: str) -> None:
    """Ask these ranks for recordings; ``folder`` has their files.

    Each rank writes a recording with the reason ``request`` and ``text``, which must be new and at
    most 64 ASCII bytes, as its detail.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.replace(REQUEST_NAME, text.encode("ascii"))
    for presence in presences:
        if state_of(presence) is RankState.RUNNING and _catches(presence.pid, presence.signal):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(presence.pid, presence.signal)


def _catches(pid: int, signal: int) -> bool:
    """Whether the process has a handler, which it loses when it executes another program."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    mask = next((line.split()[1] for line in status.splitlines() if "SigCgt" in line), "0")
    return signal > 0 and bool(int(mask, 16) >> (signal - 1) & 1)


def _own_place() -> str:
    """The machine and namespace in which a process id is valid."""
    try:
        return f"{_BOOT.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return platform.node()


def _stat(pid: int) -> tuple[str, str]:
    """The state and start time of a process; empty if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "", ""
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]
