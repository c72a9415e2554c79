"""The loop around a training function: call, and after a failure or a change reset and call again.

It runs on the caller's thread. The framework binding defines a reset: end the engine, and start it
in a new world.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from horovod.core import port, world
from horovod.core.world import confirm
from horovod.elastic.newcomers import PartService, receiving_parts
from horovod.elastic.notification import NotificationManager, notification_manager
from horovod.elastic.state import State
from horovod.errors import HorovodInternalError, HostsUpdatedInterrupt, InitError, MismatchError
from horovod.rendezvous.bootstrap import (
    ElasticClient,
    launcher_store,
    new_launcher_store,
    this_client,
)
from horovod.rendezvous.identity.elastic_messages import StateVersion
from horovod.rendezvous.store.client import Store

_CONNECT_S = 5.0  # to find a driver again


class DriverClient:
    """How the loop around a training function talks to the driver of an elastic job.

    ``client`` is that of this process; None in a job of fixed size, where there is no driver. Then
    nothing is sent, and the loop decides by itself.
    """

    def __init__(self, client: ElasticClient | None) -> None:
        self._client = client
        self._part_service = PartService()

    def watch_updates(self, manager: NotificationManager) -> None:
        """Let ``manager`` get the updates that the driver publishes."""
        client = self._client
        if client is None or manager.has_source:
            return

        def source(tell: Callable[[int, int], None]) -> None:
            client.watch_updates(lambda: new_launcher_store(os.environ, _CONNECT_S), tell)

        manager.set_source(source)

    def repeat_news(self, state: State) -> None:
        """Tell ``state`` the updates about the current world again, because it has dropped them."""
        if self._client is not None:
            for update in self._client.news():
                state.on_hosts_updated(update.timestamp, update.kind)

    @contextmanager
    def settling(self, state: State) -> Iterator[None]:
        """Inside, this process waits for its place among others that train already, if they do.

        Before, it gets the parts of the state that rank 0 has for it; they are its own afterwards.
        """
        client = self._client
        if client is None or not client.assignment.is_provisional:
            yield
            return
        with receiving_parts(state):
            yield

    def begin(self, state: State) -> None:
        """A world has begun whose ranks have equal states."""
        if self._client is not None:
            self._part_service.begin(state)

    def note_sync(self, state: State) -> None:
        """Note that ``state`` is equal to that of rank 0 now."""
        state.synced()
        if self._client is not None:
            self._client.state_version = StateVersion(self._client.assignment.world, 0)

    def note_failure(self, state: State, error: HorovodInternalError) -> None:
        """Note that ``error`` has ended the world."""
        if self._client is not None:
            self._take_state_version(self._client, state)
            self._client.note_failure(error)

    def note_update(self, state: State, *, keeps_state: bool) -> None:
        """Note that this process leaves the world because of an update."""
        if self._client is not None:
            self._take_state_version(self._client, state)
            self._client.note_update(keeps_state)

    def must_sync(self, otherwise: bool) -> bool:
        """Whether a member of the new world needs the state of rank 0; the same on all members.

        ``otherwise`` is the answer without a driver.
        """
        return otherwise if self._client is None else self._client.assignment.must_sync

    def leave(self, state: State) -> None:
        """The training function is not called again, whatever the reason."""
        self._part_service.end(state)

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


_log = logging.getLogger("horovod.elastic")

R = TypeVar("R")


def run_fn(func: Callable[..., R], reset: Callable[[], None]) -> Callable[..., R]:
    """``func`` made elastic: the result takes the same arguments, a ``State`` first.

    Before each call the state becomes equal on all ranks (``state.sync``). When ``func`` returns,
    its value is returned. A ``HorovodInternalError`` takes the state back to its last commit, a
    ``HostsUpdatedInterrupt`` keeps it as it is; then ``reset`` runs, ``state.on_reset``, and
    ``func`` is called again. The launcher decides how often. In an elastic job it also assigns the
    ranks of the new world, where rank 0 has the newest commit.

    Args:
        func: ``func(state, *args, **kwargs)``; the same on every rank.
        reset: ends this rank's engine and starts it in a new world; blocks until all ranks came.

    Raises:
        MismatchError: ranks disagree about a collective; a bug would only come again.
        InitError: there is no new world, for example because a rank is gone, or the job goes on
            without this process.
        TypeError: the first argument is no state.
        Exception: anything else that ``func`` raises.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> R:
        # Short, since it is pickled by value with a script's function.
        return _run_as_client(functools.partial(func, state, *args, **kwargs), reset, state)

    return wrapper


def _run_as_client(func: Callable[[], R], reset: Callable[[], None], state: State) -> R:
    """Call ``func`` until it is done, as a worker of an elastic job if this process is one."""
    if not hasattr(state, "sync"):
        found = type(state).__name__
        raise TypeError(f"elastic.run: the first argument must be an elastic State, found {found}")
    client = DriverClient(this_client(os.environ))
    client.watch_updates(notification_manager)
    notification_manager.init()
    notification_manager.register_listener(state)
    try:
        result = _call_until_done(func, reset, client, state)
    except MismatchError as error:
        client.end_job(str(error))
        raise
    finally:
        client.leave(state)
        notification_manager.remove_listener(state)
    client.end()
    return result


def _call_until_done(
    func: Callable[[], R], reset: Callable[[], None], client: DriverClient, state: State
) -> R:
    with client.settling(state):
        is_reset = world.settle()
    should_sync = True
    while True:
        try:
            # Another rank can be lost in here as well as in func.
            if is_reset:
                state.on_reset()
                client.repeat_news(state)
            if should_sync:
                state.sync()
                client.note_sync(state)
            client.begin(state)
            state._is_as_saved = False
            return func()
        except MismatchError:
            raise
        except (HorovodInternalError, HostsUpdatedInterrupt) as reason:
            should_sync = _leave(reason, client, state)
        reset()
        should_sync = client.must_sync(should_sync)
        is_reset = True


def _leave(
    reason: HorovodInternalError | HostsUpdatedInterrupt, client: DriverClient, state: State
) -> bool:
    """Prepare ``state`` for the next call. Returns whether rank 0 has to send it."""
    if isinstance(reason, HostsUpdatedInterrupt):
        try:
            # Values that were not committed stay valid: sync sends what was saved.
            confirm()
            state.save()
        except HorovodInternalError as error:  # values that a lost rank still owed
            reason = error
        else:
            state._note_saved()
            client.note_update(state, keeps_state=reason.skip_sync)
            return not reason.skip_sync
    _log.warning("going back to the last commit and starting again: %s", reason)
    state.restore()
    state._note_saved()
    client.note_failure(state, reason)
    return True


@contextmanager
def engine_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Raise the engine's own error in place of one of ``kinds`` that a framework made of it.

    Such an error keeps only the text, which no code reads: bindings keep the engine's error beside
    it (``port.keep_failure``).

    A decorator, too. Where no operation of this world has failed with a ``HorovodInternalError``,
    errors stay as they are.
    """
    try:
        yield
    except HorovodInternalError:
        raise
    except kinds as error:
        failure = port.take_failure()
        if not isinstance(failure, HorovodInternalError):
            raise
        raise failure from error
