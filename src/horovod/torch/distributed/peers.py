"""The ways from this rank to the others of its world, for messages; all groups share them.

Two ranks that exchange messages are a process set, whose number follows from the two ranks. Ranks
of one host need no connection. To another host a thread connects, since the other rank may be
waiting for a third one: what is started meanwhile waits in the order of its start. A rank that
connects *calls* the other one: it says so in torch's store. A rank that expects a message from any
rank answers calls, and so is connected with each rank that sends one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from horovod.core.assembly import World
from horovod.errors import InitError
from horovod.torch.distributed.world import next_number, shared_store, store_of

_ATTENTION_S = 0.5  # a thread that expects a message says so again much sooner
_SLICE_S = 0.5
_latest: Peers | None = None


def peers_of(found: World) -> Peers:
    """Those of this world, in the default group's store of now."""
    global _latest
    if _latest is None or _latest.world is not found:
        _latest = Peers(found, shared_store())
    elif _latest.calls.store is not shared_store():
        _latest.use(shared_store())
    return _latest


class Peers:
    """The ways to the other ranks of ``world``, each made when it is first needed.

    Attributes:
        calls: from ranks that begin to connect with this one.
    """

    def __init__(self, found: World, store: Store) -> None:
        self.world = found
        self._lock = threading.Lock()
        self._found: dict[int, Peer] = {}
        self._here = next(host for host in found.hosts if found.identity.rank in host)
        self.use(store)

    def use(self, store: Store) -> None:
        """Connect through this store from now on."""
        identity = self.world.identity
        self.calls = Calls(store, identity.rank, identity.size, self.to)

    def to(self, rank: int) -> Peer:
        """The way to ``rank``. ``ValueError`` for this process's own."""
        with self._lock:
            if rank not in self._found:
                self._found[rank] = Peer(self.world, rank, rank in self._here, self.calls)
            return self._found[rank]

    def find(self, rank: int) -> Peer | None:
        """The way to ``rank``, unless it is on another host and was never needed."""
        found = self._found.get(rank)
        return self.to(rank) if found is None and rank in self._here else found


class Peer:
    """The process set of this rank and another one.

    Attributes:
        number: of the set; None until the ranks are connected.
        error: why they cannot be.
    """

    def __init__(self, found: World, peer: int, is_here: bool, calls: Calls) -> None:
        self._engine = found.engine
        self._lock = threading.Lock()
        self._waiting: list[tuple[Callable[[int], object], Callable[[Exception], object]]] = []
        self.error: Exception | None = None
        self.number: int | None = None
        if is_here:
            self.number = found.engine.add_pair(peer)
            return
        threading.Thread(target=self._connect, args=(found, peer, calls), daemon=True).start()

    def when_connected(
        self, start: Callable[[int], object], fail: Callable[[Exception], object]
    ) -> None:
        """Call ``start`` with the number of the set, or ``fail``: now, or on another thread."""
        with self._lock:
            if self.error is None and self.number is None:
                self._waiting.append((start, fail))
            elif self.error is not None:
                fail(self.error)
            else:
                self._start(start, fail)

    def _connect(self, found: World, peer: int, calls: Calls) -> None:
        pair = sorted((found.identity.rank, peer))
        try:
            calls.call(peer)
            timeout_s = found.settings.start_timeout_s
            links = connect(found, f"pair/{pair[0]}/{pair[1]}", pair, calls.store, timeout_s)
            number = self._engine.add_pair(peer, *links)
        except (ValueError, RuntimeError) as error:
            with self._lock:
                self.error = error
                for _, fail in self._waiting:
                    fail(error)
                self._waiting.clear()
            return
        with self._lock:
            self.number = number
            for start, fail in self._waiting:
                self._start(start, fail)
            self._waiting.clear()

    def _start(self, start: Callable[[int], object], fail: Callable[[Exception], object]) -> None:
        assert self.number is not None
        try:
            start(self.number)
        except (ValueError, RuntimeError) as error:
            fail(error)


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


def connect(
    found: World, key: str, ranks: Sequence[int], store: Store, timeout_s: float
) -> tuple[list[Any], list[Any]]:
    """Connections between the hosts of ``ranks``: control and data; none on one host.

    Raises:
        InitError: ranks did not come, or cannot be reached.
    """
    if found.connect_members is None:
        return [], []
    limit_s = max(found.settings.start_timeout_s, timeout_s)
    links = found.connect_members(key, ranks, store_of(store), limit_s)
    return list(links.control), list(links.data)
