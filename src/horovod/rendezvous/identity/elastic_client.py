"""This process as a worker of an elastic job: how it gets a rank in a world, and in the next one.

There is one ``ElasticClient`` in a process that an elastic launcher started, none in others. The
loop that calls the training function (``horovod.elastic``) tells it what the driver should know
when this worker asks for its next rank; ``init`` asks. Keys and messages are those of
``elastic_messages``.

While the driver is away and may come back, the client connects to the store again and asks again,
since the new driver's store is empty. The driver repeats its answer if it has given one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TypeVar

from horovod.core.base.checked import BadMessageError
from horovod.errors import HorovodInternalError, InitError
from horovod.rendezvous.identity.elastic_messages import (
    RankAssignment,
    Ready,
    StateVersion,
    Update,
    WorkerKeys,
    update_key,
)
from horovod.rendezvous.store.client import Store, set_and_wait_for, wait_for

_ELASTIC = "HOROVOD_ELASTIC"
_WORKER = "_HOROVOD_WORKER"
_RECONNECT_TIMEOUT = "_HOROVOD_RECONNECT_TIMEOUT"
_SHORT_S = 1.0  # in which a driver that is back, or a dead connection, shows
_PAUSE_S = 0.2
_WATCH_S = 60.0  # without a store, on a machine that is slow now, before it hears no more updates

_Message = TypeVar("_Message")
_Result = TypeVar("_Result")


class RemovedError(InitError):
    """The job goes on without this process; the text says where it was and why."""


class StoreRetry:
    """Repeats what needs the store for ``limit_s`` after the driver has gone; 0: not at all."""

    def __init__(self, limit_s: float = 0.0) -> None:
        self.limit_s = limit_s

    def run(
        self, open_store: Callable[[], Store], act: Callable[[Store], _Result], least_s: float = 0.0
    ) -> _Result:
        """The result of ``act``, which is called again with a new connection if its store is lost.

        ``least_s``: the least limit of this call.

        Raises:
            InitError: the store has been out of reach for the limit.
        """
        gone_since: float | None = None
        while True:
            try:
                store = open_store()
                gone_since = None
                return act(store)
            except InitError:
                now = time.monotonic()
                gone_since = now if gone_since is None else gone_since
                if now - gone_since >= max(self.limit_s, least_s):
                    raise
                time.sleep(_PAUSE_S)


class ElasticClient:
    """Worker ``number`` of its job. One thread at a time, but for ``watch_updates``.

    ``retry`` is for a driver that has gone and may come back, with an empty store.
    """

    def __init__(self, number: int, retry: StoreRetry | None = None) -> None:
        self.state_version = StateVersion()
        self.checkpoint = ""
        self.assignment = RankAssignment()
        self._keys = WorkerKeys(number)
        self.retry = retry or StoreRetry()
        self._count = 0
        self._is_waiting = False
        self._reason = ""
        self._lost: tuple[int, ...] = ()
        self._keeps_state = False
        self._news: list[tuple[int, Update]] = []

    def note_failure(self, error: HorovodInternalError | InitError) -> None:
        """The last world is over because of ``error``; the next ``Ready`` will say so."""
        own, members = self.assignment.rank_info.rank, self.assignment.members
        self._reason = str(error)
        self._lost = tuple(members[r] for r in error.ranks if r < len(members) and r != own)
        self._keeps_state = False

    def note_update(self, keeps_state: bool) -> None:
        """The last world is over because of an update; ``keeps_state`` as in ``Ready``."""
        self._reason, self._lost, self._keeps_state = "", (), keeps_state

    def request_assignment(self, open_store: Callable[[], Store]) -> RankAssignment:
        """Ask for a rank in the next world, and wait for it as long as the driver lives.

        The first answer may be provisional.

        Raises:
            RemovedError: the job goes on without this process.
            InitError: the store is gone.
        """
        if not self._is_waiting:
            self._count += 1
            self._is_waiting = True
        assignment = self.retry.run(open_store, self._ask)
        self._is_waiting, self._reason, self._lost = False, "", ()
        if assignment.removal:
            _shorten_removal()
            raise RemovedError(f"init: {assignment.removal}")
        self.assignment = assignment
        return assignment

    def _ask(self, store: Store) -> RankAssignment:
        ready = Ready(
            state_version=self.state_version,
            reason=self._reason,
            lost=self._lost,
            keeps_state=self._keeps_state,
            is_early=self._count == 1,
            checkpoint=self.checkpoint,
        )
        key, wanted = self._keys.ready(self._count), self._keys.assignment(self._count)
        # Again after an interrupt or in another store: the driver knows each question by its count.
        answer = set_and_wait_for(store, key, ready.to_bytes(), wanted)
        return _read(RankAssignment.from_bytes, answer)

    def note_done(self, open_store: Callable[[], Store]) -> None:
        """The training function has returned. A driver that is away is told when it is back."""

        def say(store: Store) -> None:
            store.set(self._keys.done, b"")

        try:
            StoreRetry(min(self.retry.limit_s, _SHORT_S)).run(open_store, say)
        except InitError:
            _in_thread("horovod-done", lambda: self.retry.run(open_store, say))

    def note_fatal(self, open_store: Callable[[], Store], text: str) -> None:
        """An error that every restart would repeat: the job has to end.

        Raises:
            InitError: the store is gone.
        """
        value = text.encode(errors="replace")[:4096]
        self.retry.run(open_store, lambda store: store.set(self._keys.fatal, value))

    def watch_updates(
        self, open_store: Callable[[], Store], tell: Callable[[int, int], None]
    ) -> None:
        """Call ``tell`` with timestamp and kind of each update, from a thread of its own.

        A job cannot notice that one of its workers hears no updates. So the thread connects again
        for a while, also where no driver can come back.
        """
        count = self.assignment.updates

        def watch(store: Store) -> None:
            nonlocal count
            while True:
                update = _read(Update.from_bytes, wait_for(store, update_key(count + 1)))
                count += 1
                if count > self.assignment.updates:  # else this world was made because of it
                    self._news.append((count, update))
                    tell(update.timestamp, update.kind)

        def reopen() -> Store:
            nonlocal count
            count = max(count, self.assignment.updates)  # a new store has no older ones
            return open_store()

        _in_thread("horovod-updates", lambda: self.retry.run(reopen, watch, _WATCH_S))

    def news(self) -> list[Update]:
        """The updates about the current world of which ``watch_updates`` has heard so far."""
        since = self.assignment.updates
        self._news = [(count, update) for count, update in self._news if count > since]
        return [update for _, update in self._news]


def _in_thread(name: str, act: Callable[[], None]) -> None:
    """Run ``act`` in a daemon thread. Its InitError is dropped: the next request repeats it."""

    def run() -> None:
        with contextlib.suppress(InitError):
            act()

    threading.Thread(target=run, name=name, daemon=True).start()


def _shorten_removal() -> None:
    """If the removal ends the process, which is as it should be, a line instead of a traceback."""
    others = sys.excepthook

    def say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, RemovedError):
            sys.stderr.write(f"horovod: {error}\n")
        else:
            others(kind, error, trace)

    sys.excepthook = say


def _read(from_bytes: Callable[[bytes], _Message], value: bytes) -> _Message:
    try:
        return from_bytes(value)
    except BadMessageError as error:
        raise InitError(f"init: {error.of('the launcher')}") from None


_clients: dict[int, ElasticClient] = {}


def this_client(environ: Mapping[str, str]) -> ElasticClient | None:
    """The client of this process, the same at each call; None outside elastic jobs.

    A forked child has none: it must not ask for ranks in its parent's name.
    """
    number = environ.get(_WORKER, "")
    if environ.get(_ELASTIC) != "1" or not number.isdecimal():
        return None
    if not _clients:
        retry = StoreRetry(float(environ.get(_RECONNECT_TIMEOUT, "0")))
        _clients[os.getpid()] = ElasticClient(int(number), retry)
    return _clients.get(os.getpid())
