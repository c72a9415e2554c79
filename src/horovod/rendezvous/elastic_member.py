"""This process as a worker of an elastic job: how it gets a seat in a world, and the next one.

There is one ``Member`` in a process that an elastic launcher started, none in others. The loop that
calls the training function (``horovod.elastic``) tells it what the driver should know when this
worker asks for its next seat; ``init`` asks. Keys and messages are those of ``elastic_messages``.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence

from horovod.errors import InitError
from horovod.rendezvous.elastic_messages import (
    Ready,
    Seat,
    Standing,
    Update,
    WorkerKeys,
    update_key,
    world_scope,
)
from horovod.rendezvous.identity import Identity, hostname_of
from horovod.rendezvous.store import Store

__all__ = ["Member", "RemovedError", "identity_in", "ranks_in", "this_member"]

_ELASTIC = "HOROVOD_ELASTIC"
_WORKER = "_HOROVOD_WORKER"
_LONG_S = 3600.0
_RANKS = re.compile(r"\branks? (\d+(?:, \d+)*)")


class RemovedError(InitError):
    """The job goes on without this process; the text says where it was and why."""


class Member:
    """Worker ``number`` of its job. One thread at a time, but for ``watch_updates``."""

    def __init__(self, number: int) -> None:
        self.standing = Standing()
        self.checkpoint = ""
        self.seat = Seat()
        self._keys = WorkerKeys(number)
        self._count = 0
        self._is_waiting = False
        self._reason = ""
        self._lost: tuple[int, ...] = ()
        self._keeps_state = False

    def note_failure(self, reason: str, lost_ranks: Sequence[int] = ()) -> None:
        """Why this worker is about to ask for another seat; ranks are those of its last world."""
        members = self.seat.members
        self._reason = reason
        self._lost = tuple(members[rank] for rank in lost_ranks if rank < len(members))
        self._keeps_state = False

    def note_update(self, keeps_state: bool) -> None:
        """An update is why; ``keeps_state`` as in ``Ready``."""
        self._reason, self._lost, self._keeps_state = "", (), keeps_state

    def take_seat(self, store: Store) -> Seat:
        """Ask for a seat in the next world, and wait for it as long as the driver lives.

        The first answer may be a forecast only.

        Raises:
            RemovedError: there is none for this process any more.
            InitError: the store is gone.
        """
        if not self._is_waiting:
            self._count += 1
            ready = Ready(
                standing=self.standing,
                reason=self._reason,
                lost=self._lost,
                keeps_state=self._keeps_state,
                is_early=self._count == 1,
                checkpoint=self.checkpoint,
            )
            store.set(self._keys.ready(self._count), ready.encoded())
            self._is_waiting = True
        seat = Seat.decoded(_await(store, self._keys.seat(self._count)))
        self._is_waiting, self._reason, self._lost = False, "", ()
        if seat.removal:
            raise RemovedError(f"init: {seat.removal}")
        self.seat = seat
        return seat

    def note_done(self, store: Store) -> None:
        """The training function has returned."""
        store.set(self._keys.done, b"")

    def note_fatal(self, store: Store, text: str) -> None:
        """An error that would come again after every restart: the job has to end."""
        store.set(self._keys.fatal, text.encode(errors="replace")[:4096])

    def watch_updates(
        self, open_store: Callable[[], Store], tell: Callable[[int, int], None]
    ) -> None:
        """Call ``tell`` with timestamp and kind of each update, from a thread of its own."""
        count = self.seat.updates
        arguments = (open_store, tell, count)
        threading.Thread(
            target=self._watch, args=arguments, name="horovod-updates", daemon=True
        ).start()

    def _watch(
        self, open_store: Callable[[], Store], tell: Callable[[int, int], None], count: int
    ) -> None:
        try:
            store = open_store()
            while True:
                count += 1
                update = Update.decoded(_await(store, update_key(count)))
                if count > self.seat.updates:  # else this world was made because of it
                    tell(update.timestamp, update.kind)
        except InitError:
            return  # The driver has gone; ``take_seat`` says so where it matters.


def _await(store: Store, key: str) -> bytes:
    while True:
        try:
            return store.get(key, _LONG_S)
        except TimeoutError:
            continue


def identity_in(seat: Seat, environ: Mapping[str, str]) -> Identity:
    """Who a process with this seat is."""
    return Identity(
        rank=seat.rank,
        size=seat.size,
        local_rank=seat.local_rank,
        local_size=seat.local_size,
        cross_rank=seat.cross_rank,
        cross_size=seat.cross_size,
        hostname=hostname_of(environ),
        launcher="horovodrun",
        scope=world_scope(seat.world),
        is_forecast=seat.is_forecast,
    )


def ranks_in(text: str) -> list[int]:
    """The ranks that an error of ``init`` names."""
    found: list[int] = []
    for match in _RANKS.finditer(text):
        found += [int(number) for number in re.findall(r"\d+", match[1])]
    return list(dict.fromkeys(found))


_members: dict[int, Member] = {}


def this_member(environ: Mapping[str, str]) -> Member | None:
    """The member that this process is, the same at each call; None outside elastic jobs.

    A forked child is none: it must not ask for seats in its parent's name.
    """
    number = environ.get(_WORKER, "")
    if environ.get(_ELASTIC) != "1" or not number.isdecimal():
        return None
    if not _members:
        _members[os.getpid()] = Member(int(number))
    return _members.get(os.getpid())
