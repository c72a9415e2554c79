"""Which ranks begin to connect with this one, for messages whose source is not named.

Two ranks of different hosts are connected when they first exchange a message. A rank that connects
calls the other one: it says so in torch's store. A rank that expects a message from any rank
answers calls, and so is connected with each rank that sends one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from horovod.errors import InitError
from horovod.torch.distributed.world import next_number, store_of

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

_ATTENTION_S = 0.5  # a thread that expects a message says so again much sooner
_SLICE_S = 0.5


class Calls:
    """Calls between this rank and the others.

    Args:
        store: of the default group.
        rank: of this process in the world.
        size: of the world.
        answer: gets each rank that calls, on a thread of its own.

    Attributes:
        error: why no more calls are heard.
    """

    def __init__(self, store: Store, rank: int, size: int, answer: Callable[[int], object]) -> None:
        self.store = store
        self.error: Exception | None = None
        self._named = store_of(store)
        self._rank = rank
        self._size = size
        self._answer = answer
        self._heard = 0
        self._lock = threading.Lock()
        self._until_s = 0.0
        self._is_heard = False

    def call(self, rank: int) -> None:
        """Let ``rank`` know that this rank connects with it.

        Raises:
            InitError, RuntimeError: the store failed.
        """
        number = next_number(f"calls/{rank}", self.store)
        self._named.set(f"calls/{rank}/{number}", str(self._rank).encode())

    def hear(self) -> None:
        """Answer calls for a moment from now on."""
        with self._lock:
            self._until_s = time.monotonic() + _ATTENTION_S
            if self._is_heard or self.error is not None:
                return
            self._is_heard = True
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            while self._is_expected():
                try:
                    caller = self._named.get(f"calls/{self._rank}/{self._heard}", _SLICE_S)
                except TimeoutError:
                    continue
                self._heard += 1
                self._answer(self._rank_in(caller))
        except (ValueError, RuntimeError) as error:
            self.error = error

    def _is_expected(self) -> bool:
        with self._lock:
            self._is_heard = time.monotonic() < self._until_s
            return self._is_heard

    def _rank_in(self, caller: bytes) -> int:
        for rank in range(self._size):
            if caller == str(rank).encode() and rank != self._rank:
                return rank
        raise InitError(
            f"recv: torch.distributed's store has {caller[:32]!r} as a rank that calls rank "
            f"{self._rank}; expected another rank of {self._size}"
        )
