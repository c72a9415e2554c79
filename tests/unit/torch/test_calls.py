"""Ranks that begin to connect call the other rank through torch's store."""

from __future__ import annotations

from queue import Empty, SimpleQueue

from torch.distributed import HashStore

from horovod.torch.distributed.peers import Calls


class _Rank:
    """One of three ranks, and the calls that it has answered."""

    def __init__(self, store: HashStore, rank: int) -> None:
        self.answered: SimpleQueue[int] = SimpleQueue()
        self.calls = Calls(store, rank, 3, self.answered.put)

    def next_caller(self) -> int | None:
        """Hear until a rank calls; None if no more can be heard."""
        while self.calls.error is None:
            self.calls.hear()
            try:
                return self.answered.get(timeout=0.1)
            except Empty:
                continue
        return None


def test_calls_are_answered_in_their_order() -> None:
    store = HashStore()
    ranks = [_Rank(store, rank) for rank in range(3)]
    ranks[2].calls.call(0)
    ranks[1].calls.call(0)
    ranks[1].calls.call(2)
    assert [ranks[0].next_caller(), ranks[0].next_caller()] == [2, 1]
    assert ranks[2].next_caller() == 1
    ranks[2].calls.call(0)
    assert ranks[0].next_caller() == 2


def test_a_caller_that_cannot_be() -> None:
    for found in ("3", "0", "-1", "x" * 1000):
        store = HashStore()
        store.set("horovod/calls/0/0", found)
        rank = _Rank(store, 0)
        assert rank.next_caller() is None
        text = f"store has {found.encode()[:32]!r} as a rank that calls rank 0; expected another"
        assert text in str(rank.calls.error)
