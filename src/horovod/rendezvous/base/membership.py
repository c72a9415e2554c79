"""What a bootstrap ends with: a mesh of connected ranks, or the reason why there is none."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from horovod.core.base.checked import MOST_RANKS, BadMessageError, Fields, printable
from horovod.errors import InitError

if TYPE_CHECKING:
    from horovod._native import LinkSeals

_MOST_TEXT = 16 * 1024
_MOST_HOST = 255


class HostMesh(NamedTuple):
    """The resources that the ranks of one host share. The tuples are in the order of its ranks.

    ``region_fd`` is shared memory of the agreed size, zeroed. A descriptor in ``pidfds`` becomes
    readable when that process ends; -1 for this rank and where the system gives none. ``doorbells``
    are eventfds, one for each rank; empty in a world of one host. All descriptors are
    close-on-exec.
    """

    region_fd: int
    pidfds: tuple[int, ...]
    pids: tuple[int, ...]
    doorbells: tuple[int, ...] = ()

    def close(self) -> None:
        """Close every descriptor."""
        close_all((self.region_fd, *self.pidfds, *self.doorbells))


class SetLinks(NamedTuple):
    """This rank's TCP connections for one process set: non-blocking, authenticated both ways.

    ``control``: (host, descriptor, seals) along a binomial tree over the first ranks of the set's
    hosts. ``data``: (host, channel, descriptor, seals); the seals may be None. ``host`` is an index
    among the set's hosts, which are in the order of their lowest ranks.
    """

    control: tuple[tuple[int, int, LinkSeals], ...] = ()
    data: tuple[tuple[int, int, int, LinkSeals | None], ...] = ()

    def close(self) -> None:
        """Close every descriptor."""
        close_all((*(link[1] for link in self.control), *(link[2] for link in self.data)))


class SetConnector(Protocol):
    """Connects further process sets of a world."""

    def connect_set(self, set_id: int, members: Sequence[int]) -> SetLinks:
        """Connections for a further process set; all ranks of the world call it in the same order.

        A rank that is no member gets none and does not wait; nor does a member of a set within one
        host. The other members block until all of them are connected, at most as long as ``init``.

        Raises:
            InitError: members cannot reach each other, or have ended; the same on every member.
        """

    def connect_members(
        self, key: str, members: Sequence[int], store: Any, timeout_s: float
    ) -> SetLinks:
        """Connections for a process set that only its members know.

        Each member calls it with the same ``key``, which is used once, and a ``Store`` that all
        members reach and that several threads may use. Blocks until all are connected, for about
        ``timeout_s`` at most; not where all of them are on one host.

        Raises:
            InitError: as ``connect_set``.
        """


@dataclass(frozen=True)
class Mesh:
    """The result of a rendezvous. All tuples but ``hosts``, ``links`` and ``news`` go by rank.

    ``hosts`` are the groups of ranks that share memory, in the order of their lowest ranks. The
    ranks of this host share ``region_fd`` and have a pidfd (see ``HostMesh``) and a doorbell; the
    entries of other ranks are -1. ``doorbells`` is empty in a world of one host. ``links`` lead to
    other hosts. ``news`` are like ``links.control``, but between the first ranks of all hosts.
    ``nodes`` are the machines as the launcher names them. Only the ranks of this world know
    ``object_key``, the key of object codes. ``is_agreed``: all ranks proposed the same. All
    descriptors belong to the caller.
    """

    region_fd: int
    pidfds: tuple[int, ...]
    pids: tuple[int, ...]
    hostnames: tuple[str, ...]
    nodes: tuple[str, ...]
    hosts: tuple[tuple[int, ...], ...]
    doorbells: tuple[int, ...]
    links: SetLinks
    news: tuple[tuple[int, int, LinkSeals], ...]
    connector: SetConnector
    object_key: bytes = field(repr=False)
    is_agreed: bool

    @property
    def address(self) -> str:
        """An address of this machine that the other ranks can reach."""
        if not self.links.data:
            return "127.0.0.1"
        with socket.socket(fileno=os.dup(self.links.data[0][2])) as link:
            return str(link.getsockname()[0])

    def close(self) -> None:
        """Close every descriptor; call it once, and only if no engine owns them."""
        close_all((self.region_fd, *self.pidfds, *self.doorbells))
        close_all(link[1] for link in self.news)
        self.links.close()


def close_all(fds: Iterable[int]) -> None:
    """Close the descriptors that are not -1."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)


def as_failure(rank: int, error: BaseException) -> InitError:
    """The error for the other ranks when ``rank`` ends a bootstrap because of ``error``."""
    if isinstance(error, InitError):
        return error
    return InitError(f"init: rank {rank} gave up: {error!r}", ranks=[rank])


def misfit(difference: str, *ranks: int) -> InitError:
    """The error when processes cannot form a world; the text says how they differ."""
    return InitError(
        f"init: ranks do not fit together: {difference}; all of them need the same version of "
        "horovod, the same settings and one launcher",
        ranks=ranks,
    )


def failure_to_bytes(error: InitError) -> bytes:
    """``error`` as a message; long texts are cut."""
    fields = {"text": str(error)[:_MOST_TEXT], "ranks": error.ranks, "host": error.host}
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")


def failure_from_bytes(value: bytes, sender: str) -> InitError:
    """The error in ``value``, or one that says what is wrong with this message of ``sender``."""
    try:
        fields = Fields.read("failure", value)
        error = InitError(
            printable(fields.text("text", _MOST_TEXT)),
            ranks=fields.integers("ranks", 0, MOST_RANKS - 1),
            host=printable(fields.text("host", _MOST_HOST)),
        )
        fields.close()
    except BadMessageError as bad:
        return InitError(f"init: {bad.of(sender)}")
    return error
