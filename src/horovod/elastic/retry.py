"""The loop around a training function: call, and after a failure or a change reset and call again.

It runs on the caller's thread. The framework binding defines a reset: end the engine, and start it
in a new world.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

from horovod.core.world import confirm
from horovod.elastic.driver_client import DriverClient
from horovod.elastic.notification import notification_manager
from horovod.elastic.state import State
from horovod.errors import HorovodInternalError, HostsUpdatedInterrupt, MismatchError
from horovod.rendezvous.bootstrap import this_client

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
        Exception: anything else that ``func`` raises.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> R:
        # Short, since it is pickled by value with a script's function.
        return _run_as_client(functools.partial(func, state, *args, **kwargs), reset, state)

    return wrapper


def _run_as_client(func: Callable[[], R], reset: Callable[[], None], state: State) -> R:
    """Call ``func`` until it is done, as a worker of an elastic job if this process is one."""
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
        notification_manager.remove_listener(state)
    client.end()
    return result


def _call_until_done(
    func: Callable[[], R], reset: Callable[[], None], client: DriverClient, state: State
) -> R:
    is_reset = client.begin()
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
            client.note_update(state, keeps_state=reason.skip_sync)
            return not reason.skip_sync
    _log.warning("going back to the last commit and starting again: %s", reason)
    state.restore()
    client.note_failure(state, reason)
    return True
