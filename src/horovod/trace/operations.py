"""The operations in a recording, and the buckets that they ran in."""

from __future__ import annotations

from dataclasses import dataclass, field

from horovod.trace.recording import EventKind, Recording


@dataclass
class Operation:
    """One operation of one rank. Times are the host's, in ns; None if not in the recording.

    It is submitted, starts in a bucket when all ranks have submitted it, and is done with that
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
    """The operations of one collective, with the same ``number`` in its process set on all ranks.

    ``waited_ns`` of its time were waits; ``waits`` has the long ones as ``(rank, start,
    nanoseconds)``. ``waiting_for`` is the rank of a wait that had not ended.
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
    """All operations in the recording, in the order of their first events."""
    return _replay(recording).operations


def buckets_of(recording: Recording) -> list[Bucket]:
    """All buckets whose start is in the recording, in order."""
    return _replay(recording).buckets


def _replay(recording: Recording) -> _Replay:
    replay = _Replay()
    for event in recording.events[_FIELDS].tolist():
        replay.take(*event)
    return replay


_FIELDS = ["kind", "time_ns", "process_set", "subject", "value", "detail"]


class _Replay:
    """Collects operations and buckets from the events."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.buckets: list[Bucket] = []
        self._pending: dict[int, Operation] = {}  # by label
        self._running: dict[int, Bucket] = {}  # by process set

    def take(
        self, kind: int, time_ns: int, process_set: int, subject: int, value: int, detail: int
    ) -> None:
        if kind == EventKind.SUBMIT:
            self._add(Operation(subject, process_set, value, bool(detail), time_ns))
        elif kind == EventKind.BUCKET_START:
            bucket = Bucket(process_set, subject, time_ns)
            self._running[process_set] = bucket
            self.buckets.append(bucket)
        elif kind == EventKind.FUSED:
            self._fuse(subject, process_set, value, time_ns)
        elif kind == EventKind.ERROR and subject in self._pending:
            self._pending.pop(subject).error = value
        elif process_set in self._running:
            self._go_on(self._running[process_set], kind, subject, value, time_ns)

    def _add(self, operation: Operation) -> None:
        self._pending[operation.label] = operation
        self.operations.append(operation)

    def _fuse(self, label: int, process_set: int, bucket: int, time_ns: int) -> None:
        if label not in self._pending:  # submitted before the recording begins
            self._add(Operation(label, process_set))
        operation = self._pending[label]
        operation.started_ns, operation.bucket = time_ns, bucket
        if process_set in self._running:
            self._running[process_set].operations.append(operation)

    def _go_on(self, bucket: Bucket, kind: int, subject: int, value: int, time_ns: int) -> None:
        if kind == EventKind.WAIT:
            bucket.waiting_for = subject
        elif kind == EventKind.WAITED:
            bucket.waiting_for = None
            bucket.waits.append((subject, time_ns - value, value))
        elif kind == EventKind.BUCKET_DONE:
            bucket.done_ns, bucket.waited_ns, bucket.waiting_for = time_ns, value, None
            del self._running[bucket.process_set]
            for operation in bucket.operations:
                if operation.error is None:
                    operation.done_ns = time_ns
                self._pending.pop(operation.label, None)
