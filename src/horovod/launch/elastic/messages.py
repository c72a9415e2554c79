"""Messages between the driver and its workers, which go through the job's store.

A driver that has taken a job over begins with an empty store: updates are put there at once, ranks
when workers ask for them again. All that is to be remembered is in the ``Record``.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable

from horovod.launch.elastic.memory import JobRefusedError, Record
from horovod.launch.elastic.policy.actions import Abandon
from horovod.rendezvous.base.tcp import address_text
from horovod.rendezvous.identity.elastic_messages import (
    RankAssignment,
    Update,
    WorkerKeys,
    read_key,
    update_key,
    world_scope,
)
from horovod.rendezvous.store.server import StoreServer

# Worker, kind, number and contents; the kinds are those of ``WorkerKeys``.
Message = tuple[int, str, int, bytes]


class Mailbox:
    """What workers say, on its way from the store's thread to the driver's loop.

    ``fileno`` is readable while there is a message.
    """

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._event_fd

    def put(self, key: str, value: bytes) -> None:
        """Take ``value`` if a worker has set it for the driver; from any thread."""
        read = read_key(key)
        if read is not None:
            self._messages.append((*read, value))
            os.eventfd_write(self._event_fd, 1)

    def take(self) -> list[Message]:
        """All messages, in their order."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event_fd)
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def close(self) -> None:
        """Nothing is put into it any more."""
        os.close(self._event_fd)


def open_store(
    record: Record, *, report: Callable[[str], None], on_set: Callable[[str, bytes], None]
) -> StoreServer:
    """A new store, or one where the workers of an earlier driver look for it.

    Raises:
        JobRefusedError: another process listens there.
    """
    addresses = record.stores or [("127.0.0.1", 0)]
    try:
        return StoreServer(record.secret, addresses=addresses, report=report, on_set=on_set)
    except OSError as error:
        where = ", ".join(map(address_text, addresses))
        raise JobRefusedError(
            f"the job's workers look for horovodrun at {where}: {error}"
        ) from None


class DriverMessages:
    """Writes to ``server`` and keeps ``record`` up to date."""

    def __init__(self, server: StoreServer, record: Record) -> None:
        self._server = server
        self._record = record

    def restore(self) -> None:
        """Say again what workers may still wait for."""
        for number, update in self._record.news.items():
            self._server.set(update_key(number), update.to_bytes())
        if self._record.abandoned is not None:
            self.abandon(self._record.abandoned)

    @property
    def has_heard(self) -> bool:
        """Whether any living worker has asked for a rank."""
        return bool(self._record.asked)

    def note_question(self, worker: int, count: int) -> bool:
        """A worker asks for a rank for the ``count``-th time. Returns whether that is new.

        A question that was answered before is answered again here.
        """
        answered, assignment = self._record.answers.get(worker, (0, None))
        if assignment is not None and count <= answered:
            self._server.set(WorkerKeys(worker).assignment(answered), assignment.to_bytes())
            return False
        self._record.asked[worker] = count
        return True

    def answer(self, worker: int, assignment: RankAssignment) -> None:
        """Answer the last question of ``worker``."""
        record = self._record
        count = record.asked[worker]
        record.answers[worker] = (count, assignment)
        if not (assignment.removal or assignment.is_provisional):
            record.news = {n: u for n, u in record.news.items() if n > assignment.updates}
        self._server.set(WorkerKeys(worker).assignment(count), assignment.to_bytes())

    def begin_world(self, world: int) -> None:
        """Drop the keys under which earlier worlds connected."""
        worlds = self._record.worlds
        while worlds and worlds[0] < world:
            self._abandon(worlds.pop(0), "this world has been replaced")
        if world not in worlds:
            worlds.append(world)

    def abandon(self, action: Abandon) -> None:
        """Answer workers that connect in that world, or will, with the reason as an error."""
        self._record.abandoned = action
        self._abandon(action.world, action.reason)

    def publish(self, update: Update) -> None:
        """Tell the members of the current world."""
        record = self._record
        record.updates += 1
        record.news[record.updates] = update
        self._server.set(update_key(record.updates), update.to_bytes())

    def forget(self, worker: int) -> None:
        """The worker has ended, or cannot be reached any more."""
        self._record.asked.pop(worker, None)
        self._record.answers.pop(worker, None)
        self._server.drop(WorkerKeys(worker).all)

    def _abandon(self, world: int, reason: str) -> None:
        """Both the keys of the mesh and those of data planes."""
        for what in ("mesh", "plane"):
            self._server.abandon(f"{what}/{world_scope(world)}", reason)
