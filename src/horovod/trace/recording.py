"""Reads recorder files (``*.hvdrec``): the head, the labels and the events.

A file has four parts; numbers are little-endian, and docs/timeline.md describes every field.

1. One line of JSON (UTF-8): the *head*. ``horovod_recording`` is the version of the format.
2. ``labels`` entries of 184 bytes (``LABEL_DTYPE``): the tensors that events refer to.
3. ``events`` entries of 24 bytes (``EVENT_DTYPE``), oldest first.
4. ``stacks_bytes`` bytes of text: Python's stacks, if they were requested.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from horovod.core.base.checked import BadMessageError, Fields
from horovod.core.base.own_files import is_own_file, read_own
from horovod.trace.world_facts import MOST_RANK, world_and_rank

VERSION = 1
SUFFIX = ".hvdrec"
_MOST_BYTES = 256 << 20
_IN_GROUP = re.compile(r"(\w+) number \d+ of group .+")  # engine/control/request.cc

EVENT_DTYPE = np.dtype(
    [
        ("time_ns", "<i8"),
        ("kind", "u1"),
        ("detail", "u1"),
        ("process_set", "<u2"),
        ("subject", "<u4"),
        ("value", "<u8"),
    ]
)
LABEL_DTYPE = np.dtype(
    [
        ("id", "<u8"),
        ("key", "<u8"),
        ("process_set", "<u2"),
        ("kind", "u1"),
        ("dtype", "u1"),
        ("tensors", "<u2"),
        ("dims_count", "u1"),
        ("name_length", "u1"),
        ("dims", "<i8", 6),
        ("name", "u1", 111),
        ("op", "u1"),
    ]
)


_LABEL_NUMBERS = ("id", "key", "process_set", "kind", "dtype", "op", "tensors")


class EventKind(enum.IntEnum):
    """The kind of an event, which defines its ``subject`` and ``value``.

    NONE          nothing: an unused entry
    WORLD         a world began; subject: its number among this process' worlds, so more than 1
                  after a recovery
    SUBMIT        subject: label; value: bytes; detail 1: all ranks of the host have submitted it
    BUCKET_START  subject: number of the bucket; value: tensors and groups in it
    FUSED         subject: label; value: number of the bucket that it runs in
    BUCKET_DONE   subject: number of the bucket; value: nanoseconds of waits in it
    WAIT          a wait in a bucket began; subject: rank; detail: ``WaitPhase``
    WAITED        one of 20 us or more ended; the same, and value: nanoseconds
    ERROR         subject: label; value: ``horovod.errors.ErrorCode``
    ALARM         subject: the lost rank
    STALL         subject: label; value: nanoseconds since it was submitted
    FAILED        the world has ended for this rank; value: ``horovod.errors.ErrorCode``
    LEFT          this rank shut down
    BLOCKED       a thread of the program waited for results until now; value: nanoseconds, 20 us
                  or more
    """

    NONE = 0
    WORLD = 1
    SUBMIT = 2
    BUCKET_START = 3
    FUSED = 4
    BUCKET_DONE = 5
    WAIT = 6
    WAITED = 7
    ERROR = 8
    ALARM = 9
    STALL = 10
    FAILED = 11
    LEFT = 12
    BLOCKED = 13


class WaitPhase(enum.IntEnum):
    """What a rank waits for within a bucket."""

    STAGED = 0  # another rank of the host has to stage its data
    REDUCED = 1  # it has to reduce its share
    FINISHED = 2  # it has to take the result
    LINK = 3  # bytes from another host
    DATA_PLANE = 4  # MPI, Gloo or another data plane


class RecordingError(ValueError):
    """A file is no recording, or this version cannot read it."""


class Label(NamedTuple):
    """A tensor or a group of tensors that events refer to.

    ``key`` is the same on all ranks. Of names longer than 111 bytes only the end is kept. ``shape``
    has at most six dimensions; that of a group is its first tensor's. ``kind``, ``dtype`` and
    ``op`` are the numbers of ``horovod.core.operations``.
    """

    id: int
    key: int
    name: str
    process_set: int
    kind: int
    dtype: int
    op: int
    tensors: int
    shape: tuple[int, ...]

    @property
    def title_in_group(self) -> str:
        """``all_reduce`` of an operation that is ``all_reduce number 17 of group default``.

        Empty for others than those of ``torch.distributed``.
        """
        found = _IN_GROUP.fullmatch(self.name)
        return found[1] if found else ""


class Usage(NamedTuple):
    """What a rank's process has used from the begin of the world until the file was written.

    ``cpu_ns`` is CPU time of all of its threads, ``kernel_ns`` the part of it inside the kernel,
    ``page_faults`` the number of pages of memory that the kernel has handed out.
    """

    elapsed_ns: int
    cpu_ns: int
    kernel_ns: int
    page_faults: int


@dataclass(frozen=True)
class Recording:
    """A recorder file.

    The events are those of ``rank``; if it had died, another rank has written the file,
    ``written_by``. Times of events and ``written_ns`` are on the host's clock, which cannot be
    compared with that of another host; ``epoch_ns`` converts a time to wall-clock time. ``lost``
    events were overwritten before the file was written. ``world`` describes the world: ``job``,
    ``size``, ``generation``, ``ranks`` (a text for each), ``data_plane``, ``settings`` (the changed
    ones) and versions. ``usage`` is None if another rank or an older version has written the file.
    """

    path: Path
    rank: int
    name: str
    written_by: int
    reason: str
    detail: str
    written_ns: int
    written_epoch_ns: int
    lost: int
    world: Mapping[str, Any]
    labels: Mapping[int, Label]
    events: NDArray[np.void]
    stacks: str
    usage: Usage | None = None

    def of_kind(self, *kinds: EventKind) -> NDArray[np.void]:
        """The events of these kinds, oldest first."""
        return self.events[np.isin(self.events["kind"], kinds)]

    def epoch_ns(self, time_ns: int) -> int:
        """Nanoseconds since 1970 of an event's time, by the host's clock."""
        return time_ns - self.written_ns + self.written_epoch_ns

    def name_of(self, label: int) -> str:
        """The name of a tensor; a placeholder if later labels have replaced it."""
        found = self.labels.get(label)
        return f"<forgotten {label}>" if found is None else found.name


def find_recordings(folder: str | os.PathLike[str]) -> list[Path]:
    """The recorder files of one job, or of several jobs in one folder, oldest first.

    Links, files that are not regular and files of other users are left out.
    """
    found = []
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names if name.endswith(SUFFIX)):
            with contextlib.suppress(FileNotFoundError):  # it is being replaced
                status = path.lstat()
                if is_own_file(status):
                    found.append((status.st_mtime_ns, path.name, path))
    return [path for _, _, path in sorted(found)]


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Read one recorder file.

    Raises:
        OSError: it cannot be read, is no regular file, or belongs to another user.
        RecordingError: it is not a recorder file, is damaged, or of a newer version.
    """
    path = Path(path)
    line, _, rest = read_own(path, _MOST_BYTES).partition(b"\n")
    head = _parse_head(path, line)
    try:
        labels, rest = _take(rest, LABEL_DTYPE, head.integer("labels"))
        events, rest = _take(rest, EVENT_DTYPE, head.integer("events"))
        stacks = bytes(rest[: head.integer("stacks_bytes")])
        world, rank = world_and_rank(head)
        return Recording(
            path=path,
            rank=rank,
            name=head.text("name") or f"rank {rank}",
            written_by=head.integer("written_by", 0, MOST_RANK),
            reason=head.text("reason"),
            detail=head.text("detail", _MOST_BYTES),
            written_ns=head.integer("written_ns"),
            written_epoch_ns=head.integer("written_epoch_ns"),
            lost=head.integer("lost"),
            world=world,
            labels={int(entry["id"]): _label(entry) for entry in labels},
            events=events[events["kind"] != EventKind.NONE],
            stacks=stacks.decode(errors="replace"),
            usage=_usage(head),
        )
    except ValueError as error:
        raise RecordingError(f"{path}: not a whole recorder file: {error}") from None


def _usage(head: Fields) -> Usage | None:
    if "usage" not in head.names:
        return None
    fields = head.fields("usage")
    cpu_ns = fields.integer("cpu_ns")
    return Usage(
        elapsed_ns=fields.integer("elapsed_ns", 1),
        cpu_ns=cpu_ns,
        kernel_ns=fields.integer("kernel_ns", 0, cpu_ns),
        page_faults=fields.integer("page_faults"),
    )


def _parse_head(path: Path, line: bytes) -> Fields:
    try:
        head = Fields.read("recording", line.decode(errors="replace"))
        version = head.values["horovod_recording"]
    except (BadMessageError, KeyError):
        raise RecordingError(f"{path}: not a recorder file") from None
    if type(version) is not int or version != VERSION:
        raise RecordingError(f"{path}: of version {version!s:.20}; this program reads {VERSION}")
    return head


def _take(rest: bytes, dtype: np.dtype[np.void], count: int) -> tuple[NDArray[np.void], bytes]:
    size_bytes = dtype.itemsize * count
    if len(rest) < size_bytes:
        raise ValueError(f"expected {size_bytes} more bytes, found {len(rest)}")
    return np.frombuffer(rest[:size_bytes], dtype), rest[size_bytes:]


def label_from(number: int, entry: bytes) -> Label:
    """The label with that number; ``entry`` is its bytes in files, without the number."""
    return _label(np.frombuffer(number.to_bytes(8, "little") + entry, LABEL_DTYPE)[0])


def _label(entry: np.void) -> Label:
    name = bytes(entry["name"][: entry["name_length"]]).decode(errors="replace")
    shape = tuple(entry["dims"][: entry["dims_count"]].tolist())
    return Label(name=name, shape=shape, **{field: int(entry[field]) for field in _LABEL_NUMBERS})
