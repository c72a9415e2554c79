"""The loop around a training function: call, and after a failure or a change reset and call again.

It runs on the caller's thread. What a reset is (end the engine, start it, meet the others) comes
from the framework binding.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from horovod.elastic.notification import notification_manager
from horovod.elastic.state import State
from horovod.errors import HorovodInternalError, HostsUpdatedInterrupt, MismatchError

__all__ = ["run_fn"]

_log = logging.getLogger("horovod.elastic")

R = TypeVar("R")


def run_fn(func: Callable[..., R], reset: Callable[[], None]) -> Callable[..., R]:
    """``func`` made elastic: the result takes the same arguments, a ``State`` first.

    Before each call the state becomes equal on all ranks (``state.sync``). When ``func`` returns,
    its value is returned. A ``HorovodInternalError`` takes the state back to its last commit, a
    ``HostsUpdatedInterrupt`` keeps it as it is; then ``reset`` runs, ``state.on_reset``, and
    ``func`` is called again. There is no limit to the number of resets.

    Args:
        func: ``func(state, *args, **kwargs)``; the same on every rank.
        reset: ends this rank's engine and starts it in a new world; blocks until all ranks came.

    Raises:
        MismatchError: ranks disagree about a collective; a bug would only come again.
        InitError: the new world could not be made, for example because a rank is gone.
        Exception: anything else that ``func`` raises.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> R:
        notification_manager.init()
        notification_manager.register_listener(state)
        try:
            return _call_until_done(func, reset, state, args, kwargs)
        finally:
            notification_manager.remove_listener(state)

    return wrapper


def _call_until_done(
    func: Callable[..., R],
    reset: Callable[[], None],
    state: State,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> R:
    is_reset = False
    should_sync = True
    while True:
        try:
            # Another rank can be lost in here as well as in func.
            if is_reset:
                state.on_reset()
            if should_sync:
                state.sync()
            return func(state, *args, **kwargs)
        except MismatchError:
            raise
        except HorovodInternalError as error:
            _log.warning("going back to the last commit and starting again: %s", error)
            state.restore()
            should_sync = True
        except HostsUpdatedInterrupt as interrupt:
            # What was not committed stays valid: sync sends what was saved.
            state.save()
            should_sync = not interrupt.skip_sync
        reset()
        is_reset = True
