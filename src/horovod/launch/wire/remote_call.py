"""The call of ``horovod.run`` on its way to another host, and the answers on their way back.

Both ends keep them in files in memory (``call.py``), and send them in pieces. Nothing is unpickled
on the way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

from horovod.launch.calls.call import WorkerFiles, memory_file, seal
from horovod.launch.wire.frames import CHUNK_BYTES, Kind, encode


def call_frames(call: WorkerFiles | None) -> Iterator[bytes]:
    """The frames of the call, if there is one; they follow the plan."""
    if call is not None:
        yield from _pieces(call.call_fd, Kind.CALL)


def answer_frames(worker: int, fd: int, exit_code: int) -> Iterator[bytes]:
    """The frames about a worker's end: its answer, if it is complete, and its exit code."""
    if os.pread(fd, 1, 0) not in (b"", b"\0"):
        yield from _pieces(fd, Kind.ANSWER, worker)
    yield encode(Kind.EXITED, exit_code, worker=worker)


def _pieces(fd: int, kind: Kind, worker: int = 0) -> Iterator[bytes]:
    offset = 0
    while piece := os.pread(fd, CHUNK_BYTES, offset):
        yield encode(kind, piece, worker=worker)
        offset += len(piece)


class RemoteAnswers:
    """The launcher's side of ``answer_frames``: writes answers into the caller's files.

    The first byte, which makes an answer complete, is written last here, too.
    """

    def __init__(self, call: WorkerFiles | None) -> None:
        self._call = call
        self._begun: dict[int, tuple[bytes, int]] = {}  # by worker: the first byte, bytes so far

    def add(self, worker: int, piece: bytes) -> None:
        """Keep the next piece of an answer."""
        if self._call is None:
            return
        first, offset = self._begun.get(worker, (piece[:1], 0))
        data = piece if offset else b"\0" + piece[1:]
        self._begun[worker] = (first, offset + len(data))
        while data:
            written = os.pwrite(self._call.answer_fd(worker), data, offset)
            data, offset = data[written:], offset + written

    def complete(self, worker: int) -> None:
        """The answer has arrived completely."""
        if self._call is not None and worker in self._begun:
            os.pwrite(self._call.answer_fd(worker), self._begun.pop(worker)[0], 0)


class ReceivedCall(WorkerFiles):
    """The agent's side: a file for the call, and one for the answer of each worker."""

    def __init__(self) -> None:
        self._call = memory_file()
        self.call_fd = self._call.fileno()
        self._answers: dict[int, BinaryIO] = {}

    def add(self, piece: bytes) -> None:
        """The next piece of the call."""
        self._call.write(piece)

    def complete(self) -> None:
        """The call has arrived: make it read-only."""
        self._call.flush()
        seal(self._call)

    def answer_fd(self, worker: int) -> int:
        """See ``WorkerFiles``; of a worker that starts now."""
        answer = self._answers[worker] = memory_file()
        return answer.fileno()

    def answer_of(self, worker: int, exit_code: int) -> Iterator[bytes]:
        """See ``answer_frames``. The answer is kept until the last frame."""
        with self._answers.pop(worker) as file:
            yield from answer_frames(worker, file.fileno(), exit_code)

    def drop(self, worker: int) -> None:
        """The worker could not be started."""
        self._answers.pop(worker).close()
