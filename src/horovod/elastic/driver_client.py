"""How the loop around a training function talks to the driver of an elastic job.

Without a driver, in a job of fixed size, nothing is sent and the loop decides by itself.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from horovod.core import world
from horovod.elastic.notification import NotificationManager
from horovod.elastic.state import State
from horovod.errors import HorovodInternalError, InitError
from horovod.rendezvous.bootstrap import ElasticClient, launcher_store, new_launcher_store
from horovod.rendezvous.identity.elastic_messages import StateVersion
from horovod.rendezvous.store.client import Store

_CONNECT_S = 5.0  # to find a driver again


class DriverClient:
    """``client`` is that of this process; None in a job of fixed size."""

    def __init__(self, client: ElasticClient | None) -> None:
        self._client = client

    def watch_updates(self, manager: NotificationManager) -> None:
        """Let ``manager`` get the updates that the driver publishes."""
        client = self._client
        if client is None or manager.has_source:
            return

        def source(tell: Callable[[int, int], None]) -> None:
            client.watch_updates(lambda: new_launcher_store(os.environ, _CONNECT_S), tell)

        manager.set_source(source)

    def begin(self) -> bool:
        """Training begins: connect with the other ranks. Returns whether this is a new world."""
        return world.settle()

    def repeat_news(self, state: State) -> None:
        """Tell ``state``, which has dropped all updates, those about the current world."""
        if self._client is not None:
            for update in self._client.news():
                state.on_hosts_updated(update.timestamp, update.kind)

    def note_sync(self, state: State) -> None:
        """``state`` is that of rank 0 now."""
        state.synced()
        if self._client is not None:
            self._client.state_version = StateVersion(self._client.assignment.world, 0)

    def note_failure(self, state: State, error: HorovodInternalError) -> None:
        """The world is over because of ``error``."""
        if self._client is not None:
            self._take_state_version(self._client, state)
            self._client.note_failure(error)

    def note_update(self, state: State, *, keeps_state: bool) -> None:
        """The world is left because of an update; all that stay have the same state."""
        if self._client is not None:
            self._take_state_version(self._client, state)
            self._client.note_update(keeps_state)

    def must_sync(self, otherwise: bool) -> bool:
        """Whether a member of the new world needs the state of rank 0; the same on all members.

        ``otherwise`` is the answer where there is no driver to know.
        """
        return otherwise if self._client is None else self._client.assignment.must_sync

    def end(self) -> None:
        """The training function has returned."""
        if self._client is not None:
            self._client.note_done(_store)

    def end_job(self, text: str) -> None:
        """An error that every restart would repeat."""
        if self._client is not None:
            with contextlib.suppress(InitError):
                self._client.note_fatal(_store, text)

    @staticmethod
    def _take_state_version(client: ElasticClient, state: State) -> None:
        client.state_version = StateVersion(client.state_version.world, state._commits)
        client.checkpoint = state._checkpoint


def _store() -> Store:
    return launcher_store(os.environ, _CONNECT_S)
