"""Finds at which of several addresses this machine reaches a job's store.

A store listens at several addresses of its machine and cannot know which of them other machines
reach.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from horovod.errors import InitError
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.tcp import address_text
from horovod.rendezvous.store.client import StoreClient

_STAGGER_S = 0.25
_LEAST_TRY_S = 0.1


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
    search = _Search(secret, deadline)
    waiting = list(addresses)
    under_way = 0
    try:
        while (waiting or under_way) and not deadline.has_passed:
            if waiting:
                search.start(waiting.pop(0))
                under_way += 1
            wait_s = _STAGGER_S if waiting else deadline.remaining_s()
            if search.has_ended_one(wait_s):
                under_way -= 1
            if search.found is not None:
                return search.found
    finally:
        search.end()
    reasons = [f"  {address_text(a)}: {search.reasons.get(a, 'no answer')}" for a in addresses]
    raise InitError(
        f"init: the launcher's store cannot be reached within {timeout_s:g} s, at none of its "
        "addresses:\n" + "\n".join(reasons)
    )


class _Search:
    """Tries each address on its own thread and keeps the first client that authenticates."""

    def __init__(self, secret: bytes, deadline: Deadline) -> None:
        self.found: StoreClient | None = None
        self.reasons: dict[tuple[str, int], str] = {}
        self._secret = secret
        self._deadline = deadline
        self._ended: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_over = False

    def start(self, address: tuple[str, int]) -> None:
        """Begin to try an address."""
        name = f"horovod-find-store-{address_text(address)}"
        threading.Thread(target=self._try, args=(address,), name=name, daemon=True).start()

    def has_ended_one(self, wait_s: float) -> bool:
        """Wait until a try has succeeded or failed; False if none does in time."""
        try:
            self._ended.get(timeout=wait_s).join()
        except queue.Empty:
            return False
        return True

    def end(self) -> None:
        """From now on close each client that succeeds."""
        with self._lock:
            self._is_over = True

    def _try(self, address: tuple[str, int]) -> None:
        left_s = max(self._deadline.remaining_s(), _LEAST_TRY_S)
        try:
            self._offer(StoreClient(address, self._secret, timeout_s=left_s))
        except InitError as error:
            self.reasons[address] = error.reason
        self._ended.put(threading.current_thread())

    def _offer(self, client: StoreClient) -> None:
        with self._lock:
            is_first = self.found is None and not self._is_over
            if is_first:
                self.found = client
        if not is_first:
            client.close()
