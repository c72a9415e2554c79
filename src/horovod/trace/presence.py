"""Who runs: a small file for each rank of a job, in the folder of its recordings.

A rank writes it when its world begins and removes it at the end; what a killed one leaves behind is
recognised by the process, which is not there any more or is another one. Whoever can write to the
folder asks all ranks of the job for recordings with a new text in the file ``wanted``, and makes
those of this machine look at it with a signal that is kept for that. In a folder that the user has
chosen, and that several machines may share, the ranks of a job on several of them look twice a
second.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod.core.base.own_files import OwnFolder
from horovod.trace.world_facts import checked_world, text_field, whole_number

__all__ = [
    "REQUEST_NAME",
    "Presence",
    "RankState",
    "find_presences",
    "own_presence",
    "request_recordings",
    "state_of",
]

SUFFIX = ".running"
REQUEST_NAME = "wanted"
_VERSION = 1
_MOST_BYTES = 16 << 20
_MOST_PID = 1 << 22
_MOST_SIGNAL = 64
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class RankState(enum.Enum):
    """What is known of the process of a presence."""

    RUNNING = "running"
    STOPPED = "stopped"  # by SIGSTOP or a debugger
    GONE = "gone"
    ELSEWHERE = "elsewhere"  # on another machine or in another container: nobody here can tell


@dataclass(frozen=True)
class Presence:
    """What a rank has said of itself; ``name`` is that of messages, ``world`` as in recordings."""

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
    """What the file of this process says, as JSON; ``signal`` makes it look for requests."""
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
    """The ranks that say they run, by rank; files that are damaged or not ours are left out."""
    found = []
    for name in folder.names():
        if not name.endswith(SUFFIX):
            continue
        try:
            found.append(_parsed(folder.path / name, folder.read(name, _MOST_BYTES)))
        except (OSError, ValueError):
            continue
    return sorted(found, key=lambda presence: (presence.rank, presence.pid))


def _parsed(path: Path, data: bytes) -> Presence:
    """Every field checked. Raises ValueError."""
    try:
        fields = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(fields, dict) or fields.get("horovod_running") != _VERSION:
        raise ValueError(f"expected a presence of version {_VERSION}")
    world = checked_world(fields.get("world"))
    ranks = len(world.get("ranks", ()))
    return Presence(
        path=path,
        rank=whole_number(fields, "rank", most=ranks - 1 if ranks else None),
        pid=whole_number(fields, "pid", least=1, most=_MOST_PID),
        signal=whole_number(fields, "signal", most=_MOST_SIGNAL),
        world=world,
        **{name: text_field(fields, name) for name in ("name", "start", "place", "hostname")},
    )


def state_of(presence: Presence) -> RankState:
    """Whether that very process is still there."""
    if presence.place != _own_place():
        return RankState.ELSEWHERE
    state, start = _stat(presence.pid)
    if not state or state in "ZX" or start != presence.start:
        return RankState.GONE
    return RankState.STOPPED if state in "Tt" else RankState.RUNNING


def request_recordings(folder: OwnFolder, presences: Iterable[Presence], text: str) -> None:
    """Ask these ranks, whose files are in ``folder``; ``text`` is new and 64 ASCII bytes at most.

    Each of them writes a recording with the reason ``request`` and the text as its detail.

    Raises:
        OSError: nobody can write there.
    """
    folder.replace(REQUEST_NAME, text.encode("ascii"))
    for presence in presences:
        if state_of(presence) is RankState.RUNNING and _catches(presence.pid, presence.signal):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(presence.pid, presence.signal)


def _catches(pid: int, signal: int) -> bool:
    """Whether the process has a handler; one that has become another program has not."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    mask = next((line.split()[1] for line in status.splitlines() if "SigCgt" in line), "0")
    return signal > 0 and bool(int(mask, 16) >> (signal - 1) & 1)


def _own_place() -> str:
    """Where a process id means the same process."""
    try:
        return f"{_BOOT.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return platform.node()


def _stat(pid: int) -> tuple[str, str]:
    """State and time of start of a process; empty texts for none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "", ""
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]
