"""``torch.distributed`` between hosts: subgroups and messages get connections of their own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import horovod.torch as hvd
from horovod.torch.distributed import set_numbers


@pytest.fixture(scope="module", autouse=True)
def _group() -> Iterator[None]:
    """The default group, with torch's store in a file: hosts of the tests share the disk."""
    hvd.init()
    path = hvd.broadcast_object(tempfile.mktemp(prefix="horovod-test-"), 0)
    dist.init_process_group(
        "horovod", init_method=f"file://{path}", rank=hvd.rank(), world_size=hvd.size()
    )
    yield
    dist.barrier()
    dist.destroy_process_group()
    if int(os.environ["HOROVOD_RANK"]) == 0:
        Path(path).unlink(missing_ok=True)


# First and last: of two hosts the lower rank's has the table that decides.
ENDS = pytest.mark.parametrize("receiver", [0, -1], ids=["first", "last"])


@ENDS
def test_from_any_rank_of_any_host(receiver: int) -> None:
    """More messages than there are names, of all ranks at the same time, each in its order.

    It comes first: no rank is connected with one of another host yet.
    """
    rank, size, count = dist.get_rank(), dist.get_world_size(), 70
    receiver %= size
    if rank != receiver:
        for number in range(count):
            dist.send(torch.tensor([rank, number]), receiver)
    else:
        expected = dict.fromkeys((r for r in range(size) if r != rank), 0)
        for _ in range(count * (size - 1)):
            source = dist.recv(found := torch.empty(2, dtype=torch.int64))
            assert found.tolist() == [source, expected[source]]
            expected[source] += 1
        assert set(expected.values()) == {count}
    dist.barrier()  # or the receiver could get what the next test sends


@ENDS
def test_many_messages_from_any_rank_are_awaited_at_a_time(receiver: int) -> None:
    """No two of them take the same message."""
    rank, size = dist.get_rank(), dist.get_world_size()
    receiver %= size
    others = [r for r in range(size) if r != receiver]
    if rank != receiver:
        dist.send(torch.tensor([rank]), receiver)
    else:
        founds = [torch.empty(1, dtype=torch.int64) for _ in others]
        works = [dist.irecv(found) for found in founds]
        for received in [work.get_future() for work in works]:
            received.wait()
        sources = [work.source_rank() for work in works]
        assert sources == [found.item() for found in founds]
        assert sorted(sources) == others
    dist.barrier()


@ENDS
def test_from_any_rank_with_tags_and_named_sources(receiver: int) -> None:
    """Several are awaited at a time, with a thread and without; named ones come in between."""
    rank, size = dist.get_rank(), dist.get_world_size()
    receiver %= size
    others = [r for r in range(size) if r != receiver]
    if rank != receiver:
        works = [
            dist.isend(torch.tensor([tag, rank]), receiver, tag=tag)
            for tag in (2, 1, 1)  # the last one is received by its name
        ]
        for work in works:
            work.wait()
    else:
        for _ in others:
            founds = {tag: torch.empty(2, dtype=torch.int64) for tag in (1, 2)}
            works = {tag: dist.irecv(found, tag=tag) for tag, found in founds.items()}
            received = works[2].get_future()
            works[1].wait()
            received.wait()
            for tag, work in works.items():
                assert founds[tag].tolist() == [tag, work.source_rank()]
            dist.recv(founds[1], works[1].source_rank(), tag=1)
            assert founds[1].tolist() == [1, works[1].source_rank()]
    dist.barrier()


def test_messages_in_a_ring() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    to, source = (rank + 1) % size, (rank - 1) % size
    for numel in (1, 300_000):
        found = torch.empty(numel)
        works = [dist.isend(torch.full((numel,), float(rank)), to), dist.irecv(found, source)]
        for work in works:
            work.wait()
        assert found.eq(source).all()
    received = dist.irecv(found := torch.empty(2), source).get_future()
    dist.send(torch.full((2,), float(rank)), to)
    received.wait()
    assert found.eq(source).all()


def test_a_message_from_any_rank_that_does_not_come() -> None:
    group = dist.new_group()
    with pytest.raises(dist.DistBackendError, match="no rank has sent such a message"):
        dist.irecv(torch.empty(1), tag=7, group=group).wait(timedelta(seconds=0.5))
    work = dist.irecv(torch.empty(1), tag=8, group=group)
    assert not work.is_completed()
    received = work.get_future()
    dist.destroy_process_group(group)
    with pytest.raises(RuntimeError, match="has left process group"):
        received.wait()


def test_subgroups_that_end() -> None:
    ends = [0, dist.get_world_size() - 1]
    for _ in range(3):
        group = dist.new_group(ends)
        if dist.get_rank() in ends:
            dist.all_reduce(tensor := torch.ones(3), group=group)
            assert tensor.tolist() == [2] * 3
            dist.destroy_process_group(group)


def test_numbers_of_groups_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here each number, once the first ones have been used: memory of all hosts is given back."""
    monkeypatch.setattr(set_numbers, "_COUNT", 8)
    order = list(reversed(range(dist.get_world_size())))
    numbers = set()
    for turn in range(24):
        group = dist.new_group(order, sort_ranks=False)
        numbers.add(group._members.number)
        found = [torch.empty(1) for _ in order]
        dist.all_gather(found, torch.tensor([turn + float(group.rank())]), group=group)
        assert [tensor.item() for tensor in found] == [
            turn + float(rank) for rank in range(len(order))
        ]
        dist.destroy_process_group(group)
    assert len(numbers) <= 8
