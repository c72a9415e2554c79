"""``torch.distributed`` between hosts: subgroups and messages get connections of their own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
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


def test_a_message_from_any_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="the source must be named"):
        dist.recv(torch.empty(1))


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
