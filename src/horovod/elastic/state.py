"""What elastic training saves, goes back to and makes equal on all ranks."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from typing import Any

from horovod.elastic.notification import HostUpdate, notification_manager
from horovod.errors import HostsUpdatedInterrupt

__all__ = ["ObjectState", "State"]


class State:
    """Base of all states; derive from it and give ``save``, ``restore`` and ``sync``.

    Args:
        bcast_object: gives all ranks a copy of rank 0's object; collective.
        get_rank: the current rank of this process, for subclasses.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._get_rank = get_rank
        self._host_messages: queue.Queue[tuple[int, int]] = queue.Queue()
        self._last_updated_timestamp = 0
        self._reset_callbacks: list[Callable[[], None]] = []
        self.commits = 0
        self.checkpoint = ""

    def save(self) -> None:
        """Keep a copy of the current values in host memory; no communication."""
        raise NotImplementedError(f"{type(self).__name__} must define save()")

    def restore(self) -> None:
        """Go back to what was saved last; no communication."""
        raise NotImplementedError(f"{type(self).__name__} must define restore()")

    def sync(self) -> None:
        """Make every rank equal to rank 0; collective, blocks until it is done."""
        raise NotImplementedError(f"{type(self).__name__} must define sync()")

    def reset(self) -> None:
        """Adapt to a new world, before callbacks and ``sync``; nothing unless overridden."""

    def commit(self) -> None:
        """``save``, then ``check_host_updates``: every rank has to call it equally often.

        Raises:
            HostsUpdatedInterrupt: as ``check_host_updates``.
        """
        self.save()
        self.commits += 1
        self.check_host_updates()

    def synced(self) -> None:
        """The state is that of rank 0 now; called by the loop around the training function."""
        self.commits = 0

    def check_host_updates(self) -> None:
        """Leave the training function, on all ranks at once, if the set of hosts changed.

        Collective where hosts can come and go: then every rank has to call it equally often. In a
        job of fixed size it returns at once without communication.

        Raises:
            HostsUpdatedInterrupt: rank 0 knows of a change newer than the last one seen.
        """
        if not notification_manager.has_source and self._host_messages.empty():
            return
        timestamp, kinds = self._bcast_object(self._take_messages())
        # A newcomer has seen none: whether there is a newer one is rank 0's to say.
        self._last_updated_timestamp = timestamp
        if kinds:
            # Whoever stays has what everybody else has, so there is nothing to send.
            raise HostsUpdatedInterrupt(skip_sync=kinds == HostUpdate.REMOVED)

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Call these, without arguments and in this order, after each reset.

        Rank and size are those of the new world then: scale a learning rate here.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """A new world has begun: forget updates about the old one, ``reset``, then callbacks."""
        self._take_messages()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Note a change for the next ``check_host_updates``; called from any thread.

        Args:
            timestamp: when it happened, in seconds since the epoch.
            update_res: its kind, a ``HostUpdate``.
        """
        self._host_messages.put((timestamp, update_res))

    def _take_messages(self) -> tuple[int, int]:
        """Empty the queue: newest timestamp, and union of kinds of those not seen before."""
        newest, kinds = self._last_updated_timestamp, 0
        while True:
            try:
                timestamp, kind = self._host_messages.get_nowait()
            except queue.Empty:
                return newest, kinds
            if timestamp > self._last_updated_timestamp:
                newest, kinds = max(newest, timestamp), kinds | int(kind)


class ObjectState(State):
    """Python objects as attributes: one for each keyword, the same ones on every rank.

    Attributes are saved by reference: assign new values (``state.batch += 1``), for what changes
    inside a list or dict changes in the saved copy, too. Other attributes are not tracked.

    Args:
        bcast_object: as for ``State``.
        get_rank: as for ``State``.
        kwargs: names and first values; anything that can be pickled.
    """

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = kwargs
        self._assign_saved()

    def save(self) -> None:
        """Remember the current values."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Assign the remembered values again."""
        self._assign_saved()

    def sync(self) -> None:
        """Take over the values that rank 0 saved last; collective."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self._assign_saved()

    def _assign_saved(self) -> None:
        # Not ``restore``, which a subclass extends to values of its own.
        for name, value in self._saved_state.items():
            setattr(self, name, value)
