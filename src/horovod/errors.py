"""Every error that the package raises on purpose, in one tree.

    ValueError                      a bad argument, found on this rank before anything was sent
    ├ InitError                     ``init`` could not make a world: ranks are missing or refused
    └ SettingError                  an environment variable with a value that cannot be used
    RuntimeError
    ├ HorovodInternalError          a collective failed; elastic training restores and retries
    │ ├ AlteredObjectError          an object is not the one that its sender sent
    │ ├ MismatchError               ranks disagree about a collective: a bug, never retried
    │ ├ PeerLostError               a rank died, left or stopped answering
    │ ├ StallError                  a rank did not submit within the stall shutdown time
    │ └ ShutdownError               this rank shut the engine down with the operation unfinished
    └ HostsUpdatedInterrupt         no failure: the set of hosts changed, elastic training restarts
    ImportError
    └ HorovodVersionMismatchError   a framework of another version than the one built for
    TimeoutError
    └ TimeoutException              processes of a job did not find each other in time

A text is for people. What code needs to know is in attributes: no code reads an error's text. The
engine reports a code, a text and what the error is about; ``from_code`` makes the exception of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ErrorCode(IntEnum):
    """The engine's error codes; the same numbers as ``engine/core/error.h``."""

    INVALID_ARGUMENT = 1
    MISMATCH = 2
    PEER_LOST = 3
    TIMEOUT = 4
    ABORTED = 5
    SYSTEM = 6
    INTERNAL = 7


class _SubjectError(Exception):
    """An error that says what it is about.

    Attributes:
        ranks: ranks of the world that are missing, dead, silent or out of reach, rising; none that
            have left the world by themselves. Empty if none are known.
        host: name of the host of all these ranks; empty if not known, or if they have several.
        operation: what failed, such as ``allreduce 'x'``; empty if not known.
    """

    # For errors that older versions have pickled.
    ranks: tuple[int, ...] = ()
    host: str = ""
    operation: str = ""

    def __init__(
        self, *args: object, ranks: Iterable[int] = (), host: str = "", operation: str = ""
    ) -> None:
        super().__init__(*args)
        self.ranks = tuple(sorted(set(ranks)))
        self.host = host
        self.operation = operation


class HorovodInternalError(_SubjectError, RuntimeError):
    """A collective failed on this rank; the text names operation, tensor, rank and reason.

    Attributes:
        ranks: ranks of the world that are missing, dead, silent or out of reach, rising; none that
            have left the world by themselves. Empty if none are known.
        host: name of the host of all these ranks; empty if not known, or if they have several.
        operation: what failed, such as ``allreduce 'x'``; empty if not known.
    """


class MismatchError(HorovodInternalError):
    """Ranks submitted one name with different operations, dtypes, shapes, roots or factors."""


class AlteredObjectError(HorovodInternalError):
    """A received object does not have its sender's code; nothing of it was used.

    The world is over: the other ranks get a ``HorovodInternalError`` with the same text. Elastic
    training begins a new one with new keys, as after a lost connection: an attacker that can alter
    messages could also have cut the connection.

    Attributes:
        operation: ``broadcast_object``, ``allgather_object``, ``broadcast_numbers``, or
            ``agreement`` on process sets.
        name: name of the operation.
        sender: rank whose object it should have been.
    """

    def __init__(self, operation: str, name: str, sender: int) -> None:
        super().__init__(
            f"{operation} {name!r}: what arrived as the object of rank {sender} is not what it "
            "sent: its code is wrong, so it was altered, replayed or exchanged on the way; nothing "
            "of it was used",
            operation=operation,
        )
        self.name = name
        self.sender = sender


class PeerLostError(HorovodInternalError):
    """Another rank died, shut down or stopped answering; only a new ``init`` helps."""


class StallError(HorovodInternalError):
    """Some rank did not submit a tensor within ``HOROVOD_STALL_SHUTDOWN_TIME_SECONDS``."""


class ShutdownError(HorovodInternalError):
    """``shutdown`` was called on this rank while the operation was unfinished."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 public name
    """The set of hosts changed, so a new world has to begin; current values are kept.

    ``skip_sync``: every rank that stays has the same state already.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the set of hosts changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework was found in another version than the one that the binding was built for.

    For scripts that catch it; the engine is built for no framework's version and never raises it.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(
            f"{name} {version} is in use, but Horovod was installed with {name} "
            f"{installed_version}; reinstall Horovod with the version in use"
        )
        self.name = name
        self.version = version
        self.installed_version = installed_version


class InitError(_SubjectError, ValueError):
    """``init`` failed: the text says which ranks or settings were the reason.

    Attributes:
        ranks: ranks that did not come, died, cannot be reached or do not fit, rising; empty if the
            reason is another one.
        host: name of the host of all these ranks; empty if not known, or if they have several.
        operation: what failed, if not ``init`` itself.
    """

    @property
    def reason(self) -> str:
        """The text without the name of ``init``, for a sentence of something else."""
        return str(self).removeprefix("init: ")


class SettingError(ValueError):
    """An environment variable or flag has a value that cannot be used."""


class TimeoutException(TimeoutError):  # noqa: N818 public name
    """Processes that were to start or to register did not do so in time; the text says which."""


_BY_CODE: dict[int, type[HorovodInternalError]] = {
    ErrorCode.MISMATCH: MismatchError,
    ErrorCode.PEER_LOST: PeerLostError,
    ErrorCode.TIMEOUT: StallError,
    ErrorCode.ABORTED: ShutdownError,
    ErrorCode.SYSTEM: HorovodInternalError,
    ErrorCode.INTERNAL: HorovodInternalError,
}


def from_code(
    code: int, text: str, *, ranks: Iterable[int] = (), host: str = "", operation: str = ""
) -> Exception:
    """The exception for an engine error code, ready to raise."""
    if code == ErrorCode.INVALID_ARGUMENT:
        return ValueError(text)
    kind = _BY_CODE.get(code, HorovodInternalError)
    return kind(text, ranks=ranks, host=host, operation=operation)
