"""Finds at which of several addresses this machine reaches a job's store.

A store listens at several addresses of its machine and cannot know which of them other machines
reach.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence

from horovod.errors import InitError
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.tcp import address_text
from horovod.rendezvous.store.client import StoreClient

_STAGGER_S = 0.25
_LEAST_TRY_S = 0.1
_Ended = queue.SimpleQueue[tuple[tuple[str, int], "StoreClient | InitError"]]


def find_store(
    addresses: Sequence[tuple[str, int]], secret: bytes, timeout_s: float
) -> StoreClient:
    """A connection to the store at the first of ``addresses`` that proves to know ``secret``.

    Each address is tried a moment after the one before, without waiting for its answer. The
    client's ``address`` is the one that was found. Blocks for ``timeout_s`` at most.

    Raises:
        InitError: no address gave an authentic answer in time; the text has a reason for each.
    """
    deadline = Deadline(timeout_s)
    ended: _Ended = queue.SimpleQueue()
    reasons: dict[tuple[str, int], str] = {}
    waiting = list(addresses)
    under_way = 0
    try:
        while (waiting or under_way) and not deadline.has_passed:
            if waiting:
                _start(_try, waiting.pop(0), secret, deadline, ended)
                under_way += 1
            wait_s = _STAGGER_S if waiting else deadline.remaining_s()
            with contextlib.suppress(queue.Empty):
                address, result = ended.get(timeout=wait_s)
                under_way -= 1
                if isinstance(result, StoreClient):
                    return result
                reasons[address] = result.reason
    finally:
        if under_way:
            _start(_close_late, under_way, ended)
    shown = [f"  {address_text(a)}: {reasons.get(a, 'no answer')}" for a in addresses]
    raise InitError(
        f"init: the launcher's store cannot be reached within {timeout_s:g} s, at none of its "
        "addresses:\n" + "\n".join(shown)
    )


def _start(target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, name="horovod-find-store", daemon=True).start()


def _try(address: tuple[str, int], secret: bytes, deadline: Deadline, ended: _Ended) -> None:
    left_s = max(deadline.remaining_s(), _LEAST_TRY_S)
    try:
        ended.put((address, StoreClient(address, secret, timeout_s=left_s)))
    except InitError as error:
        ended.put((address, error))


def _close_late(count: int, ended: _Ended) -> None:
    """Close the clients that succeed after the first one."""
    for _ in range(count):
        _, result = ended.get()
        if isinstance(result, StoreClient):
            result.close()
