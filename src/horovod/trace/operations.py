"""What a rank did, as its recording tells: operations and the buckets that they ran in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from horovod.trace.recording import EventKind, Label, Recording

__all__ = ["Bucket", "Operation", "buckets_of", "operations_of"]


@dataclass
class Operation:
    """One operation of one rank. Times are the host's, in ns; None: not in the recording.

    It is submitted, starts when all ranks have come and a bucket takes it, and is done with that
    bucket or ends with an ``error`` (``horovod.errors.ErrorCode``). ``was_last``: this rank was the
    last of its host to submit it.
    """

    label: int
    process_set: int
    size_bytes: int | None = None
    was_last: bool = False
    submitted_ns: int | None = None
    started_ns: int | None = None
    done_ns: int | None = None
    bucket: int | None = None
    error: int | None = None

    @property
    def is_pending(self) -> bool:
        """Neither done nor failed when the recording was written."""
        return self.done_ns is None and self.error is None


@dataclass
class Bucket:
    """What ran as one collective: the ``number``-th of its process set, on all ranks alike.

    ``waited_ns`` of its time were waits, which ``waits`` has one by one if they were long, as
    ``(rank, start, nanoseconds)``; ``waiting_for`` is the rank of a wait that had not ended.
    """

    process_set: int
    number: int
    started_ns: int
    done_ns: int | None = None
    waited_ns: int = 0
    waiting_for: int | None = None
    operations: list[Operation] = field(default_factory=list)
    waits: list[tuple[int, int, int]] = field(default_factory=list)


def operations_of(recording: Recording) -> list[Operation]:
    """All operations in the recording, in the order in which they were first heard of."""
    return [operation for operation, _ in _replay(recording) if operation is not None]


def buckets_of(recording: Recording) -> list[Bucket]:
    """All buckets whose start is in the recording, in order."""
    return [bucket for _, bucket in _replay(recording) if bucket is not None]


def label_of(recording: Recording, operation: Operation) -> Label | None:
    """What is known of the operation's tensor."""
    return recording.labels.get(operation.label)


def _replay(recording: Recording) -> Iterator[tuple[Operation | None, Bucket | None]]:
    """Operations and buckets as they appear; what happens to them later is filled in."""
    found: list[tuple[Operation | None, Bucket | None]] = []
    pending: dict[int, Operation] = {}
    running: dict[int, Bucket] = {}
    for event in recording.events:
        kind, detail, time_ns = int(event["kind"]), int(event["detail"]), int(event["time_ns"])
        subject, value = int(event["subject"]), int(event["value"])
        process_set = int(event["process_set"])
        bucket = running.get(process_set)
        if kind == EventKind.SUBMIT:
            operation = Operation(subject, process_set, value, bool(detail), time_ns)
            pending[subject] = operation
            found.append((operation, None))
        elif kind == EventKind.BUCKET_START:
            running[process_set] = bucket = Bucket(process_set, subject, time_ns)
            found.append((None, bucket))
        elif kind == EventKind.FUSED:
            fused = pending.get(subject)
            if fused is None:
                pending[subject] = fused = Operation(subject, process_set)
                found.append((fused, None))
            fused.started_ns, fused.bucket = time_ns, value
            if bucket is not None:
                bucket.operations.append(fused)
        elif kind == EventKind.ERROR:
            if subject in pending:
                pending.pop(subject).error = value
        elif bucket is not None:
            _continue(bucket, kind, subject, value, time_ns)
            if kind == EventKind.BUCKET_DONE:
                for operation in running.pop(process_set).operations:
                    if operation.error is None:
                        operation.done_ns = time_ns
                    pending.pop(operation.label, None)
    yield from found


def _continue(bucket: Bucket, kind: int, subject: int, value: int, time_ns: int) -> None:
    if kind == EventKind.WAIT:
        bucket.waiting_for = subject
    elif kind == EventKind.WAITED:
        bucket.waiting_for = None
        bucket.waits.append((subject, time_ns - value, value))
    elif kind == EventKind.BUCKET_DONE:
        bucket.done_ns, bucket.waited_ns, bucket.waiting_for = time_ns, value, None
