"""ElasticSampler: coverage, progress and padding at any number of ranks."""

from __future__ import annotations

import random
from collections import Counter
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from horovod.torch.elastic import ElasticSampler, sampler


@pytest.fixture
def place(monkeypatch):
    """``place(rank, size)`` puts this process into a world."""

    def place(rank: int, size: int) -> None:
        monkeypatch.setattr(sampler, "rank", lambda: rank)
        monkeypatch.setattr(sampler, "size", lambda: size)

    place(0, 1)
    return place


def on_all_ranks(place, size, make):
    samplers = []
    for rank in range(size):
        place(rank, size)
        samplers.append(make())
    return samplers


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 12, 13, 100])
def test_ranks_together_cover_the_data_set(place, size, count, shuffle):
    samplers = on_all_ranks(place, size, lambda: ElasticSampler(range(count), shuffle, seed=3))
    shares = [list(one) for one in samplers]
    assert [len(one) for one in samplers] == [len(share) for share in shares]
    assert len({len(share) for share in shares}) == 1
    times = Counter(index for share in shares for index in share)
    assert set(times) == set(range(count))
    padding = samplers[0].total_size - count
    assert 0 <= padding < size or count == 0
    assert sum(times.values()) == samplers[0].total_size == samplers[0].num_samples * size


def test_order_is_interleaved_and_padded_from_the_beginning(place):
    samplers = on_all_ranks(place, 3, lambda: ElasticSampler(range(7), shuffle=False))
    assert [list(one) for one in samplers] == [[0, 3, 6], [1, 4, 0], [2, 5, 1]]


def test_order_is_the_documented_shuffle(place):
    one = ElasticSampler(range(50), seed=4)
    one.set_epoch(2)
    expected = list(range(50))
    random.Random(4 + 2).shuffle(expected)
    assert list(one) == one.remaining_indices == expected
    one.set_epoch(3)
    assert list(one) != expected
    assert sorted(one) == list(range(50))


def test_attributes(place):
    place(1, 4)
    data = range(10)
    one = ElasticSampler(data, seed=6)
    assert one.dataset is data
    assert (one.shuffle, one.seed, one.epoch, one.processed_num) == (True, 6, 0, 0)
    assert (one.num_replicas, one.rank, one.num_samples, one.total_size) == (4, 1, 3, 12)


def test_recorded_batches_come_off_at_reset(place):
    place(0, 2)
    one = ElasticSampler(range(20), shuffle=True, seed=1)
    order = list(one.remaining_indices)
    one.record_batch(0, 3)
    one.record_batch(1, 3)
    assert one.processed_num == 12
    assert one.remaining_indices == order
    one.reset()
    assert one.remaining_indices == order[12:]
    assert list(one) == order[12::2]


@pytest.mark.parametrize("new_size", [1, 2, 3, 5])
def test_an_epoch_goes_on_with_another_number_of_ranks(place, new_size):
    before = on_all_ranks(place, 4, lambda: ElasticSampler(range(37), seed=9))
    done = [index for one in before for index in list(one)[:6]]
    for one in before:
        for batch in range(3):
            one.record_batch(batch, 2)
    progress = before[0].state_dict()
    assert progress == {"epoch": 0, "processed_num": 24}

    def resumed() -> ElasticSampler:
        one = ElasticSampler(range(37), seed=9)
        one.load_state_dict(progress)
        return one

    after = on_all_ranks(place, new_size, resumed)
    rest = [index for one in after for index in one]
    assert set(done) | set(rest) == set(range(37))
    assert not set(done) & set(rest)


def test_more_recorded_than_there_is_leaves_nothing(place):
    place(0, 2)
    one = ElasticSampler(range(5))
    for batch in range(2):
        one.record_batch(batch, 2)
    one.reset()
    assert (list(one), len(one)) == ([], 0)


def test_next_epoch_starts_with_everything(place):
    place(0, 2)
    one = ElasticSampler(range(8))
    one.record_batch(0, 2)
    one.set_epoch(1)
    assert (one.epoch, one.processed_num, len(one.remaining_indices)) == (1, 0, 8)


def test_works_in_a_data_loader(place):
    place(1, 2)
    one = ElasticSampler(range(8), shuffle=False)
    loader = DataLoader(range(8), batch_size=2, sampler=one)
    assert [batch.tolist() for batch in loader] == [[1, 3], [5, 7]]


class Job:
    """Worlds that follow each other; what their ranks committed of each epoch."""

    def __init__(self, count: int, shuffle: bool, seed: int) -> None:
        self.options = (range(count), shuffle, seed)
        self.count = count
        self.committed: dict[int, Counter[int]] = {}
        self.progress = {"epoch": 0, "processed_num": 0}

    def world(self, size: int, batch_size: int, committed: int, redone: int) -> None:
        """Ranks take ``committed`` batches and ``redone`` ones more, which are lost with them."""
        ranks = [self.rank(rank, size) for rank in range(size)]
        shares = [list(sampler) for sampler in ranks]
        for number in range(committed + redone):
            batches = [share[number * batch_size :][:batch_size] for share in shares]
            if not batches[0]:
                break
            for one, batch in zip(ranks, batches, strict=True):
                one.record_batch(number, len(batch))
            if number < committed:
                self.note(ranks, batches)
        if committed * batch_size >= len(shares[0]):
            self.end_epoch(ranks)

    def rank(self, rank: int, size: int) -> ElasticSampler:
        patched = {"rank": lambda: rank, "size": lambda: size}
        with mock.patch.multiple(sampler, **patched):
            one = ElasticSampler(*self.options)
            one.load_state_dict(self.progress)
            return one

    def note(self, ranks: list[ElasticSampler], batches: list[list[int]]) -> None:
        """A commit: whoever is rank 0 later, the progress is the same."""
        epoch = self.committed.setdefault(ranks[0].epoch, Counter())
        epoch.update(index for batch in batches for index in batch)
        self.progress = ranks[-1].state_dict()
        assert all(one.state_dict() == self.progress for one in ranks)

    def end_epoch(self, ranks: list[ElasticSampler]) -> None:
        seen = self.committed.setdefault(ranks[0].epoch, Counter())
        assert set(seen) == set(range(self.count))
        assert sum(seen.values()) - self.count in range(max(len(ranks), 1))  # padding
        with mock.patch.multiple(sampler, rank=lambda: 0, size=lambda: len(ranks)):
            ranks[0].set_epoch(ranks[0].epoch + 1)
        self.progress = ranks[0].state_dict()


WORLDS = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(0, 6), st.integers(0, 3))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 50), st.booleans(), st.integers(0, 5), st.lists(WORLDS, max_size=12))
def test_every_epoch_is_the_data_set_over_any_sequence_of_worlds(count, shuffle, seed, worlds):
    job = Job(count, shuffle, seed)
    for world in worlds:
        job.world(*world)
    last = job.progress["epoch"]
    job.world(3, 2, count + 1, 0)
    assert job.progress["epoch"] == last + 1
    assert set(job.committed) == set(range(last + 1))
