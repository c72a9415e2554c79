"""What the driver tells its workers through the job's store, and what it must tell them again.

A driver that has taken a job over begins with an empty store: updates are put there at once, seats
when workers ask for them again. All that is to be remembered is in the ``Record``.
"""

from __future__ import annotations

from collections.abc import Callable

from horovod.launch.elastic.memory import JobRefusedError, Record
from horovod.launch.elastic.policy.actions import Abandon
from horovod.rendezvous.identity.elastic_messages import (
    RankAssignment,
    Update,
    WorkerKeys,
    update_key,
    world_scope,
)
from horovod.rendezvous.store.client import address_text
from horovod.rendezvous.store.server import StoreServer

__all__ = ["DriverMessages", "open_store"]


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
    """Writes to ``server``; ``record`` is kept up to date."""

    def __init__(self, server: StoreServer, record: Record) -> None:
        self._server = server
        self._record = record

    def restore(self) -> None:
        """Say again what workers may still wait for."""
        for number, update in self._record.news.items():
            self._server.set(update_key(number), update.encoded())
        if self._record.abandoned is not None:
            self.abandon(self._record.abandoned)

    @property
    def has_heard(self) -> bool:
        """Whether any worker that lives has asked for a seat."""
        return bool(self._record.asked)

    def note_question(self, worker: int, count: int) -> bool:
        """A worker asks for a seat for the ``count``-th time; whether that is new.

        It is answered here if it was answered before.
        """
        answered, assignment = self._record.answers.get(worker, (0, None))
        if assignment is not None and count <= answered:
            self._server.set(WorkerKeys(worker).assignment(answered), assignment.encoded())
            return False
        self._record.asked[worker] = count
        return True

    def answer(self, worker: int, assignment: RankAssignment) -> None:
        """To the last question of ``worker``."""
        record = self._record
        count = record.asked[worker]
        record.answers[worker] = (count, assignment)
        if not (assignment.removal or assignment.is_provisional):
            record.news = {n: update for n, update in record.news.items() if n > assignment.updates}
        self._server.set(WorkerKeys(worker).assignment(count), assignment.encoded())

    def begin_world(self, world: int) -> None:
        """Nobody needs what is left of the meetings of earlier worlds."""
        worlds = self._record.worlds
        while worlds and worlds[0] < world:
            self._abandon(worlds.pop(0), "this world has been replaced")
        if world not in worlds:
            worlds.append(world)

    def abandon(self, action: Abandon) -> None:
        """Whoever meets in that world, or will, gets the reason as an error."""
        self._record.abandoned = action
        self._abandon(action.world, action.reason)

    def publish(self, update: Update) -> None:
        """Tell the members of the current world."""
        record = self._record
        record.updates += 1
        record.news[record.updates] = update
        self._server.set(update_key(record.updates), update.encoded())

    def forget(self, worker: int) -> None:
        """It has ended, or nobody can reach it."""
        self._record.asked.pop(worker, None)
        self._record.answers.pop(worker, None)
        self._server.drop(WorkerKeys(worker).all)

    def _abandon(self, world: int, reason: str) -> None:
        """The keys of a meeting: the ranks' own, and those of data planes."""
        for what in ("mesh", "plane"):
            self._server.abandon(f"{what}/{world_scope(world)}", reason)
