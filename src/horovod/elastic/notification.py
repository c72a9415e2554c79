"""Passes news about hosts to the states that listen: one manager per process.

In an elastic job the manager gets a source on every rank before training starts. Without a source,
as in a job of fixed size, the world never changes and ranks do not communicate about it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Protocol

from horovod.rendezvous.identity.elastic_messages import HostUpdate as HostUpdate


class Listener(Protocol):
    """Gets updates: a ``State``."""

    def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Called from the source's thread; see ``State.on_hosts_updated``."""


# Starts to watch and returns; calls its argument with timestamp and kind, from its own thread.
Source = Callable[[Callable[[int, int], None]], None]


class NotificationManager:
    """Passes updates from the source to all registered listeners; any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._source: Source | None = None
        self._is_started = False
        self._listeners: list[Listener] = []

    @property
    def has_source(self) -> bool:
        """Whether updates can come at all; the same on every rank of a job."""
        return self._source is not None

    def set_source(self, source: Source) -> None:
        """Set where updates come from: on every rank or on none, before ``init``."""
        self._source = source

    def init(self) -> None:
        """Start the source, if there is one and it does not run yet."""
        with self._lock:
            if self._source is None or self._is_started:
                return
            self._is_started = True
        self._source(self.handle_hosts_updated)

    def register_listener(self, listener: Listener) -> None:
        """Pass updates to ``listener`` from now on."""
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Pass ``listener`` no further updates; one call undoes one ``register_listener``."""
        with self._lock:
            self._listeners = _without_one(self._listeners, listener)

    def handle_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Tell all listeners; called by the source."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)


def _without_one(listeners: list[Listener], removed: Listener) -> list[Listener]:
    """By identity: a state may define equality by its contents."""
    for index, listener in enumerate(listeners):
        if listener is removed:
            return listeners[:index] + listeners[index + 1 :]
    return listeners


notification_manager = NotificationManager()


def is_elastic_job() -> bool:
    """Whether an elastic launcher started this process.

    Then a world of one may become a larger one, and a process that starts later must not need the
    other ranks before it trains.
    """
    return os.environ.get("HOROVOD_ELASTIC") == "1"
