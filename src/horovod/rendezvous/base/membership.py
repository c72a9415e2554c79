"""What a rank holds once all ranks have met, and the clock that they share while they meet."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horovod._native import LinkSeals

__all__ = ["Deadline", "HostMesh", "Mesh", "SetLinks", "close_all"]


@dataclass(frozen=True)
class HostMesh:
    """What the ranks of one host share; the tuples follow its ranks in rising order.

    ``region_fd`` is shared memory of the agreed size, zeroed. ``pidfds`` become readable when that
    process ends; -1 for this rank itself and where the system gives none. ``bells`` are eventfds,
    one for each rank; none in a world of one host. All descriptors are close-on-exec.
    """

    region_fd: int
    pidfds: tuple[int, ...]
    pids: tuple[int, ...]
    bells: tuple[int, ...] = ()

    def close(self) -> None:
        """Close every descriptor."""
        close_all((self.region_fd, *self.pidfds, *self.bells))


@dataclass(frozen=True)
class SetLinks:
    """This rank's TCP connections for one process set: non-blocking, authenticated both ways.

    ``control``: (host, descriptor, seals) along a binomial tree over the set's hosts, between the
    first ranks of each. ``data``: (host, channel, descriptor, seals), None for no seals. A host is
    counted among the set's own, in the order of their lowest ranks.
    """

    control: tuple[tuple[int, int, LinkSeals], ...] = ()
    data: tuple[tuple[int, int, int, LinkSeals | None], ...] = ()

    def close(self) -> None:
        """Close every descriptor."""
        close_all((*(link[1] for link in self.control), *(link[2] for link in self.data)))


@dataclass(frozen=True)
class Mesh:
    """The result of a rendezvous; all tuples but ``hosts``, ``links`` and ``news`` go by rank.

    ``hosts`` are the groups of ranks that share memory, in the order of their lowest ranks; those
    of this rank's own share ``region_fd``, and have a pidfd (see ``HostMesh``) and, where there are
    several hosts, a bell; the others -1. ``bells`` is empty in a world of one host. ``links`` and
    ``news``, like its ``control`` between the first ranks of all hosts, lead to the other hosts.
    ``nodes`` are the machines as the launcher names them. ``object_key`` is known to the ranks of
    this world alone, for the codes of objects. All descriptors belong to the caller.
    """

    region_fd: int
    pidfds: tuple[int, ...]
    pids: tuple[int, ...]
    hostnames: tuple[str, ...]
    nodes: tuple[str, ...]
    hosts: tuple[tuple[int, ...], ...]
    bells: tuple[int, ...]
    links: SetLinks
    news: tuple[tuple[int, int, LinkSeals], ...]
    connector: Callable[[int, Sequence[int]], SetLinks]
    object_key: bytes = field(repr=False)

    def connect_set(self, set_id: int, members: Sequence[int]) -> SetLinks:
        """Connections for a further process set; all ranks of the world call it in the same order.

        Those who are no members, and members of a set within one host, get none and do not wait.
        The others block until all of them are connected, for as long as ``init`` would at most.

        Raises:
            InitError: some cannot reach each other or left; on every member alike.
        """
        return self.connector(set_id, members)

    @property
    def address(self) -> str:
        """An address of this machine that the other ranks of the world reach."""
        if not self.links.data:
            return "127.0.0.1"
        with socket.socket(fileno=os.dup(self.links.data[0][2])) as link:
            return str(link.getsockname()[0])

    def close(self) -> None:
        """Close every descriptor; call it once, and not if an engine owns them."""
        close_all((self.region_fd, *self.pidfds, *self.bells))
        close_all(link[1] for link in self.news)
        self.links.close()


class Deadline:
    """A point in time, ``timeout_s`` after construction."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.at = time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Seconds that are left; 0 when it has passed."""
        return max(0.0, self.at - time.monotonic())

    @property
    def has_passed(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self.at


def close_all(fds: Iterable[int]) -> None:
    """Close the descriptors that are not -1."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)
