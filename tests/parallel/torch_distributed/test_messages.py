"""Messages between two ranks: order, tags, any source, many at once."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


needs_two = pytest.mark.skipif(
    "int(__import__('os').environ['HOROVOD_SIZE']) < 2", reason="one rank"
)


@needs_two
def test_in_a_ring():
    to, source = (rank() + 1) % size(), (rank() - 1) % size()
    for numel in (1, 5, 300_000):
        found = torch.empty(numel, dtype=torch.float64)
        send = dist.isend(torch.full((numel,), float(rank()), dtype=torch.float64), to)
        receive = dist.irecv(found, source)
        send.wait()
        receive.wait()
        assert found.eq(source).all()


@needs_two
def test_tags_tell_messages_apart():
    if rank() == 0:
        works = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in (1, 2, 3)]
        for work in works:
            work.wait()
    elif rank() == 1:
        for tag in (3, 1, 2):
            dist.recv(found := torch.empty(1), 0, tag=tag)
            assert found.item() == tag


@needs_two
def test_many_messages_keep_their_order():
    count = 200  # more than there are names
    if rank() == 0:
        for number in range(count):
            dist.send(torch.tensor([number]), 1)
    elif rank() == 1:
        found = torch.empty(1, dtype=torch.int64)
        for number in range(count):
            dist.recv(found, 0)
            assert found.item() == number


@needs_two
def test_from_any_rank():
    if rank() == 0:
        sources = set()
        for _ in range(1, size()):
            source = dist.recv(found := torch.empty(2))
            assert found.tolist() == [float(source)] * 2
            sources.add(source)
        assert sources == set(range(1, size()))
    else:
        dist.send(torch.full((2,), float(rank())), 0)
    dist.barrier()  # or rank 0 could receive what the next test sends


@needs_two
def test_a_batch():
    peers = [r for r in range(size()) if r != rank()]
    found = {peer: torch.empty(3) for peer in peers}
    operations = [dist.P2POp(dist.isend, torch.full((3,), float(rank())), peer) for peer in peers]
    operations += [dist.P2POp(dist.irecv, found[peer], peer) for peer in peers]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert all(tensor.eq(peer).all() for peer, tensor in found.items())


@needs_two
def test_into_a_tensor_with_gaps_and_in_a_subgroup():
    group = dist.new_group([0, 1])
    if rank() == 0:
        dist.send(torch.arange(6.0).view(2, 3), 1, group=group)
    elif rank() == 1:
        wide = torch.zeros(2, 6)
        dist.recv(wide[:, ::2], 0, group=group)
        assert wide[:, ::2].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert wide[:, 1::2].eq(0).all()
    if rank() < 2:
        dist.destroy_process_group(group)


@needs_two
def test_a_future_of_a_message():
    if rank() == 0:
        dist.isend(torch.ones(2), 1).get_future().wait()
    elif rank() == 1:
        found = torch.empty(2)
        dist.irecv(found, 0).get_future().wait()
        assert found.tolist() == [1, 1]
