"""What the loop around a training function tells the driver of an elastic job, and hears from it.

Without a driver, in a job of fixed size, nothing is told and the loop decides by itself.
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

__all__ = ["DriverClient"]

_PATIENCE_S = 5.0  # with a driver that has to be found again


class DriverClient:
    """This process as ``client`` of an elastic job, or None."""

    def __init__(self, client: ElasticClient | None) -> None:
        self._client = client

    def watch_updates(self, manager: NotificationManager) -> None:
        """Let ``manager`` hear of updates that the driver publishes."""
        client = self._client
        if client is None or manager.has_source:
            return

        def source(tell: Callable[[int, int], None]) -> None:
            client.watch_updates(lambda: new_launcher_store(os.environ, _PATIENCE_S), tell)

        manager.set_source(source)

    def begin(self) -> bool:
        """Training begins: meet the others now, at the latest; whether to adapt to a new world."""
        return world.settle()

    def repeat_news(self, state: State) -> None:
        """Tell ``state``, which has forgotten all updates, those about the world that it is in."""
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
        """Whether some member of the new world needs the state of rank 0: the same on all of them.

        ``otherwise`` is the answer where there is no driver to know.
        """
        return otherwise if self._client is None else self._client.assignment.must_sync

    def end(self) -> None:
        """The training function has returned."""
        if self._client is not None:
            self._client.note_done(_store)

    def end_job(self, text: str) -> None:
        """An error that every restart would only bring again."""
        if self._client is not None:
            with contextlib.suppress(InitError):
                self._client.note_fatal(_store, text)

    @staticmethod
    def _take_state_version(client: ElasticClient, state: State) -> None:
        client.state_version = StateVersion(client.state_version.world, state._commits)
        client.checkpoint = state._checkpoint


def _store() -> Store:
    return launcher_store(os.environ, _PATIENCE_S)
