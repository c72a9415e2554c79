"""What travels between ``horovod.run`` and its workers, and how: files in memory without a name.

All workers read the call from one file. Each worker writes its answer into a file of its own. The
files are inherited as descriptors, from the caller to the supervisor to the workers, so no other
process can read or write them. What is unpickled comes from a process that this one started, or
that started this one. Sizes are not limited, and no reader has to keep up with a writer.

An answer begins with one byte, which is written last. So the answer of a worker that dies while it
writes does not count.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import pickle
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

# The numbers of the descriptors in a worker, whatever they are elsewhere.
CALL_FD = 3
ANSWER_FD = 4
_LAST_STANDARD_FILE = 2

RESULT = b"R"
_FAILURE = b"F"


class WorkerFiles:
    """The descriptors of one job as its launcher needs them, by the workers' numbers."""

    call_fd: int

    def answer_fd(self, worker: int) -> int:
        """The descriptor of this worker's answer."""
        raise NotImplementedError

    def for_worker(self, worker: int) -> dict[int, int]:
        """This worker's descriptors, by their numbers in the worker."""
        return {CALL_FD: self.call_fd, ANSWER_FD: self.answer_fd(worker)}


@dataclass(frozen=True)
class CallFiles(WorkerFiles):
    """The descriptors of one job: the call, and an answer for each rank."""

    call_fd: int
    answer_fds: tuple[int, ...]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All of them."""
        return (self.call_fd, *self.answer_fds)

    def answer_fd(self, worker: int) -> int:
        """See ``WorkerFiles``; here numbers are ranks."""
        return self.answer_fds[worker]

    def has_result(self, worker: int) -> bool:
        """Whether the answer of this worker is a result."""
        return is_result(self.answer_fd(worker))


class Call(NamedTuple):
    """A function with its arguments, and the caller's command line.

    ``search_path`` is where its modules are found; None leaves it to the worker's Python.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    argv: tuple[str, ...] = ()
    search_path: tuple[str, ...] | None = None


class Failure(NamedTuple):
    """Why a worker has no result. ``cause`` is the pickled exception, empty if that failed."""

    what: str
    traceback: str
    exit_code: int
    time_ns: int
    cause: bytes = b""

    def exception(self) -> BaseException | None:
        """The worker's exception, if it could be pickled and unpickled."""
        try:
            error = pickle.loads(self.cause)
        except Exception:  # there is none, or its constructor raises, which may be anything
            return None
        return error if isinstance(error, BaseException) else None


def memory_file() -> BinaryIO:
    """An empty file without a name, readable, writable, close-on-exec; the caller closes it.

    A child inherits it under its number. That is never one of a standard file, which a child
    replaces, even if this process has closed these.
    """
    try:
        fd = os.memfd_create("horovod-call", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (OSError, AttributeError):  # refused by a sandbox, or not Linux
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    return os.fdopen(_above_standard_files(fd), "w+b")


def _above_standard_files(fd: int) -> int:
    if fd > _LAST_STANDARD_FILE:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LAST_STANDARD_FILE + 1)
    finally:
        os.close(fd)


def write_call(call: Call, file: BinaryIO) -> None:
    """Put ``call`` into ``file``, and seal it.

    Raises:
        TypeError: the function or an argument cannot be pickled; the text names it.
        OSError: the file cannot be written.
    """
    from horovod.launch.calls.by_value import dump  # the launcher itself needs no cloudpickle

    # Two pickles: the second can be read only with the search path of the first.
    pickle.dump((call.argv, call.search_path), file)
    try:
        dump((call.function, call.args, dict(call.kwargs)), file)
    except Exception:  # an object says itself how it is pickled, so it may raise anything
        _check_parts(call)
        raise
    file.flush()
    seal(file)


def _check_parts(call: Call) -> None:
    """``TypeError`` for the first part of the call that cannot be pickled, if there is one."""
    from horovod.launch.calls.by_value import dumps

    function = f"the function {getattr(call.function, '__qualname__', call.function)!r}"
    parts = {function: call.function}
    parts |= {f"args[{index}]": value for index, value in enumerate(call.args)}
    parts |= {f"kwargs[{key!r}]": value for key, value in call.kwargs.items()}
    for name, value in parts.items():
        try:
            dumps(value)
        except Exception as error:
            found = "" if value is call.function else f", of type {type(value).__name__},"
            raise TypeError(
                f"{name}{found} cannot be pickled, as it has to be to reach other processes "
                f"({type(error).__name__}: {error}); make inside of the function what cannot travel"
            ) from error


def seal(file: BinaryIO) -> None:
    """Make ``file`` read-only for all processes, where the system can do that."""
    with contextlib.suppress(OSError, AttributeError):
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)


def read_call(fd: int, prepare: Callable[[tuple[str, ...], tuple[str, ...] | None], None]) -> Call:
    """The call in ``fd``; ``prepare`` gets ``argv`` and ``search_path`` before it is unpickled."""
    # All workers share the position in the file, so each of them maps it.
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as stream:
        argv, search_path = pickle.load(stream)
        prepare(argv, search_path)
        function, args, kwargs = pickle.load(stream)
    return Call(function, args, kwargs, argv, search_path)


def write_result(fd: int, result: Any) -> None:
    """Answer with ``result``. Raises what pickling raises; then there is no answer yet."""
    from horovod.launch.calls.by_value import dump

    _write_answer(fd, RESULT, lambda file: dump(result, file))


def write_failure(fd: int, failure: Failure) -> None:
    """Answer with the reason why there is no result."""
    _write_answer(fd, _FAILURE, lambda file: pickle.dump(failure, file))


def is_result(fd: int) -> bool:
    """Whether the answer in ``fd`` is complete and a result."""
    return os.pread(fd, 1, 0) == RESULT


def is_failure(fd: int) -> bool:
    """Whether the answer in ``fd`` is complete and a failure."""
    return os.pread(fd, 1, 0) == _FAILURE


def read_result(file: BinaryIO) -> Any:
    """The result in ``file`` (see ``is_result``). Raises what unpickling raises."""
    file.seek(1)
    return pickle.load(file)


def read_failure(file: BinaryIO) -> Failure | None:
    """The failure in ``file``; None if it holds a result or nothing."""
    file.seek(0)
    if file.read(1) != _FAILURE:
        return None
    failure: Failure = pickle.load(file)
    return failure


def failure_of(error: BaseException, what: str, exit_code: int) -> Failure:
    """``error`` as a ``Failure``; the outermost frame is ours and left out."""
    shown = error.__traceback__
    if shown is not None and shown.tb_next is not None:
        shown = shown.tb_next
    text = "".join(traceback.format_exception(type(error), error, shown))
    return Failure(what, text, exit_code, time.time_ns(), _pickled(error))


def _pickled(error: BaseException) -> bytes:
    from horovod.launch.calls.by_value import dumps

    try:
        return dumps(error)
    except Exception:  # it holds something that cannot be pickled; its text is sent
        return b""


def _write_answer(fd: int, kind: bytes, write: Callable[[BinaryIO], None]) -> None:
    os.ftruncate(fd, 0)
    with open(fd, "wb", closefd=False) as file:
        file.seek(1)
        write(file)
    os.pwrite(fd, kind, 0)
