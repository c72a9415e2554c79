"""This process as a worker of an elastic job: how it gets a seat in a world, and the next one.

There is one ``ElasticClient`` in a process that an elastic launcher started, none in others. The
loop that calls the training function (``horovod.elastic``) tells it what the driver should know
when this worker asks for its next seat; ``init`` asks. Keys and messages are those of
``elastic_messages``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TypeVar

from horovod.core.base.checked import BadMessageError
from horovod.errors import HorovodInternalError, InitError
from horovod.rendezvous.identity.driver_absence import DriverAbsence, driver_absence_in
from horovod.rendezvous.identity.elastic_messages import (
    Ready,
    Seat,
    StateVersion,
    Update,
    WorkerKeys,
    update_key,
    world_scope,
)
from horovod.rendezvous.identity.environment import Identity, hostname_of
from horovod.rendezvous.store.client import Store

__all__ = ["ElasticClient", "RemovedError", "identity_in", "this_member"]

_ELASTIC = "HOROVOD_ELASTIC"
_WORKER = "_HOROVOD_WORKER"
_LONG_S = 3600.0
_MOMENT_S = 1.0  # in which a driver that is back, or a dead connection, shows
_Message = TypeVar("_Message")


class RemovedError(InitError):
    """The job goes on without this process; the text says where it was and why."""


class ElasticClient:
    """Worker ``number`` of its job. One thread at a time, but for ``watch_updates``.

    ``patience`` is for a driver that has gone and may come back, with an empty store.
    """

    def __init__(self, number: int, patience: DriverAbsence | None = None) -> None:
        self.standing = StateVersion()
        self.checkpoint = ""
        self.seat = Seat()
        self._keys = WorkerKeys(number)
        self._patience = patience or DriverAbsence()
        self._count = 0
        self._is_waiting = False
        self._has_asked = False
        self._reason = ""
        self._lost: tuple[int, ...] = ()
        self._keeps_state = False
        self._news: list[tuple[int, Update]] = []

    def note_failure(self, error: HorovodInternalError | InitError) -> None:
        """Why this worker is about to ask for another seat: its last world is over."""
        seat = self.seat
        others = [rank for rank in error.ranks if rank < len(seat.members) and rank != seat.rank]
        self._reason = str(error)
        self._lost = tuple(seat.members[rank] for rank in others)
        self._keeps_state = False

    def note_update(self, keeps_state: bool) -> None:
        """An update is why; ``keeps_state`` as in ``Ready``."""
        self._reason, self._lost, self._keeps_state = "", (), keeps_state

    def take_seat(self, open_store: Callable[[], Store]) -> Seat:
        """Ask for a seat in the next world, and wait for it as long as the driver lives.

        The first answer may be a forecast only.

        Raises:
            RemovedError: there is none for this process any more.
            InitError: the store is gone.
        """
        if not self._is_waiting:
            self._count += 1
            self._is_waiting, self._has_asked = True, False
        seat = self._patience.with_store(open_store, self._ask)
        self._is_waiting, self._reason, self._lost = False, "", ()
        if seat.removal:
            _be_brief()
            raise RemovedError(f"init: {seat.removal}")
        self.seat = seat
        return seat

    def _ask(self, store: Store) -> Seat:
        try:
            if not self._has_asked:
                ready = Ready(
                    standing=self.standing,
                    reason=self._reason,
                    lost=self._lost,
                    keeps_state=self._keeps_state,
                    is_early=self._count == 1,
                    checkpoint=self.checkpoint,
                )
                store.set(self._keys.ready(self._count), ready.encoded())
                self._has_asked = True
            return _decoded(Seat.decoded, _await(store, self._keys.seat(self._count)))
        except InitError:
            self._has_asked = False  # another driver knows nothing of it
            raise

    def note_done(self, open_store: Callable[[], Store]) -> None:
        """The training function has returned; a driver that is away hears of it when it is back."""
        briefly = DriverAbsence(min(self._patience.limit_s, _MOMENT_S))
        try:
            briefly.with_store(open_store, self._say_done)
        except InitError:
            arguments = (open_store, self._say_done)
            threading.Thread(
                target=self._say_late, args=arguments, name="horovod-done", daemon=True
            ).start()

    def _say_done(self, store: Store) -> None:
        store.set(self._keys.done, b"")

    def _say_late(self, open_store: Callable[[], Store], say: Callable[[Store], None]) -> None:
        with contextlib.suppress(InitError):  # the exit status will say it, too
            self._patience.with_store(open_store, say)

    def note_fatal(self, open_store: Callable[[], Store], text: str) -> None:
        """An error that would come again after every restart: the job has to end.

        Raises:
            InitError: the store is gone.
        """
        value = text.encode(errors="replace")[:4096]
        self._patience.with_store(open_store, lambda store: store.set(self._keys.fatal, value))

    def watch_updates(
        self, open_store: Callable[[], Store], tell: Callable[[int, int], None]
    ) -> None:
        """Call ``tell`` with timestamp and kind of each update, from a thread of its own."""
        arguments = (open_store, tell, self.seat.updates)
        threading.Thread(
            target=self._watch, args=arguments, name="horovod-updates", daemon=True
        ).start()

    def news(self) -> list[Update]:
        """The updates about the world of the last seat of which ``watch_updates`` has heard.

        It tells of any others later than now.
        """
        self._news = [(count, update) for count, update in self._news if count > self.seat.updates]
        return [update for _, update in self._news]

    def _watch(
        self, open_store: Callable[[], Store], tell: Callable[[int, int], None], count: int
    ) -> None:
        def watch(store: Store) -> None:
            nonlocal count
            while True:
                update = _decoded(Update.decoded, _await(store, update_key(count + 1)))
                count += 1
                if count > self.seat.updates:  # else this world was made because of it
                    self._news.append((count, update))
                    tell(update.timestamp, update.kind)

        def reopen() -> Store:
            nonlocal count
            count = max(count, self.seat.updates)  # a new store has no older ones
            return open_store()

        with contextlib.suppress(InitError):  # ``take_seat`` says so where it matters
            self._patience.with_store(reopen, watch)


def _be_brief() -> None:
    """If removal ends the process, which is as it should be, a line is enough to say so."""
    others = sys.excepthook

    def say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, RemovedError):
            sys.stderr.write(f"horovod: {error}\n")
        else:
            others(kind, error, trace)

    sys.excepthook = say


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


_members: dict[int, ElasticClient] = {}


def this_member(environ: Mapping[str, str]) -> ElasticClient | None:
    """The member that this process is, the same at each call; None outside elastic jobs.

    A forked child is none: it must not ask for seats in its parent's name.
    """
    number = environ.get(_WORKER, "")
    if environ.get(_ELASTIC) != "1" or not number.isdecimal():
        return None
    if not _members:
        _members[os.getpid()] = ElasticClient(int(number), driver_absence_in(environ))
    return _members.get(os.getpid())


def _decoded(decode: Callable[[bytes], _Message], value: bytes) -> _Message:
    try:
        return decode(value)
    except BadMessageError as error:
        raise InitError(f"init: {error.of('the launcher')}") from None
