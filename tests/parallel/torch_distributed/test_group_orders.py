"""Groups whose ranks are in another order than the world's, and parts of groups."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

# torch announces new names for some functions.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.skipif("int(__import__('os').environ['HOROVOD_SIZE']) < 2", reason="one rank"),
    pytest.mark.skipif(
        "sort_ranks" not in signature(dist.new_group).parameters, reason="newer torch"
    ),
]

Group = dist.ProcessGroup


@pytest.fixture(scope="module", params=["reversed", "turned"])
def order(request: pytest.FixtureRequest) -> Iterator[Group]:
    """All ranks: the last one first, or the first one last."""
    ranks = list(range(dist.get_world_size()))
    turned = ranks[::-1] if request.param == "reversed" else [*ranks[1:], 0]
    made = dist.new_group(turned, sort_ranks=False)
    assert dist.get_process_group_ranks(made) == turned
    yield made
    dist.destroy_process_group(made)


@pytest.fixture
def own(order: Group) -> int:
    """This process's rank in the group."""
    return order.rank()


@pytest.fixture
def ranks(order: Group) -> range:
    return range(order.size())


def test_reductions(order: Group, own: int, ranks: range):
    dist.all_reduce(tensor := torch.full((3,), own + 1.0), group=order)
    assert tensor.tolist() == [sum(r + 1 for r in ranks)] * 3
    dist.all_reduce(bits := torch.tensor([1 << own]), ReduceOp.BOR, group=order)
    assert bits.item() == (1 << order.size()) - 1
    for root in ranks:
        dist.reduce(tensor := torch.full((3,), own + 1.0), group_dst=root, group=order)
        total = float(sum(r + 1 for r in ranks))
        assert tensor.tolist() == [total if own == root else own + 1.0] * 3


def test_roots(order: Group, own: int, ranks: range):
    for root in ranks:
        dist.broadcast(tensor := torch.tensor([own]), group_src=root, group=order)
        assert tensor.item() == root
        found = [torch.empty(2) for _ in ranks] if own == root else None
        dist.gather(torch.full((2,), float(own)), found, group_dst=root, group=order)
        assert found is None or [t.tolist() for t in found] == [[float(r)] * 2 for r in ranks]
        parts = [torch.full((2, 2), float(r)) for r in ranks] if own == root else None
        dist.scatter(wide := torch.zeros(2, 4)[:, ::2], parts, group_src=root, group=order)
        assert wide.tolist() == [[float(own)] * 2] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.float8_e4m3fn])
def test_gathering(order: Group, own: int, ranks: range, dtype: torch.dtype):
    mine = torch.full((2, 3), float(own)).to(dtype)
    expected = torch.cat([torch.full((2, 3), float(r)).to(dtype).view(torch.uint8) for r in ranks])
    found = [torch.empty_like(mine) for _ in ranks]
    dist.all_gather(found, mine, group=order)
    assert torch.equal(torch.cat([t.view(torch.uint8) for t in found]), expected)
    into = torch.empty(2 * order.size(), 3, dtype=dtype)
    dist.all_gather_into_tensor(into, mine, group=order)
    assert torch.equal(into.view(torch.uint8), expected)
    transposed = torch.empty(3, 2 * order.size(), dtype=dtype).t()
    dist.all_gather_into_tensor(transposed, mine, group=order)
    assert torch.equal(transposed.contiguous().view(torch.uint8), expected)


def test_gathering_several(order: Group, own: int, ranks: range):
    outputs = [torch.empty(n * order.size()) for n in (1, 2)]
    inputs = [torch.full((n,), float(own)) for n in (1, 2)]
    order.allgather_into_tensor_coalesced(outputs, inputs).wait()
    assert [t.tolist() for t in outputs] == [
        [float(r) for r in ranks for _ in range(n)] for n in (1, 2)
    ]
    objects: list[object] = [None] * order.size()
    dist.all_gather_object(objects, {"rank": own}, group=order)
    assert objects == [{"rank": r} for r in ranks]
    dist.all_gather(uneven := [torch.empty(r + 1) for r in ranks], torch.ones(own + 1), group=order)
    assert [t.tolist() for t in uneven] == [[1.0] * (r + 1) for r in ranks]


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.AVG])
def test_reduce_scatter(order: Group, own: int, ranks: range, op: ReduceOp.RedOpType):
    factor = {ReduceOp.SUM: sum(r + 1 for r in ranks), ReduceOp.MAX: order.size()}
    expected = factor.get(op, (order.size() + 1) / 2) * (10.0**own)
    whole = torch.tensor([(own + 1) * 10.0**r for r in ranks])
    dist.reduce_scatter_tensor(output := torch.zeros(1), whole, op, group=order)
    assert output.item() == expected
    dist.reduce_scatter(output := torch.zeros(1), list(whole.split(1)), op, group=order)
    assert output.item() == expected
    uneven = [whole[r].expand(r + 1).clone() for r in ranks]
    dist.reduce_scatter(output := torch.zeros(own + 1), uneven, op, group=order)
    assert output.tolist() == [expected] * (own + 1)
    options = dist.ReduceScatterOptions()
    options.reduceOp = op
    outputs = [torch.zeros(1), torch.zeros(1)]
    order.reduce_scatter_tensor_coalesced(outputs, [whole, 2 * whole], options).wait()
    assert [t.item() for t in outputs] == [expected, 2 * expected]


def test_alltoall(order: Group, own: int, ranks: range):
    output = torch.empty(order.size(), dtype=torch.int64)
    dist.all_to_all_single(output, torch.arange(order.size()) + 10 * own, group=order)
    assert output.tolist() == [10 * r + own for r in ranks]
    # Rank r sends r + s + 1 rows to rank s.
    counts = [own + r + 1 for r in ranks]
    rows = torch.cat([torch.full((n, 2), 10.0 * own + r) for r, n in enumerate(counts)])
    output = torch.empty(sum(counts), 2)
    dist.all_to_all_single(output, rows, counts, counts, group=order)
    assert output[:, 0].tolist() == [10.0 * r + own for r in ranks for _ in range(counts[r])]
    outputs = [torch.empty(n) for n in counts]
    inputs = [torch.full((n,), 10.0 * own + r) for r, n in enumerate(counts)]
    dist.all_to_all(outputs, inputs, group=order)
    assert [t.tolist() for t in outputs] == [[10.0 * r + own] * counts[r] for r in ranks]


def test_messages(order: Group, own: int):
    to, source = (own + 1) % order.size(), (own - 1) % order.size()
    send = dist.isend(torch.full((3,), float(own)), group_dst=to, group=order)
    dist.recv(found := torch.empty(3), group_src=source, group=order)
    send.wait()
    assert found.tolist() == [float(source)] * 3


def test_a_model(order: Group, own: int):
    torch.manual_seed(own)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1), process_group=order)
    model(torch.full((1, 2), own + 1.0)).sum().backward()
    weight = model.module.weight
    assert weight.grad is not None
    assert weight.grad.tolist() == [[(order.size() + 1) / 2] * 2]
    dist.broadcast(first := weight.detach().clone(), group_src=0, group=order)
    assert torch.equal(first, weight)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine with GPUs, to which ``init_process_group`` was given this rank's."""
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: cuda)
    world = dist.group.WORLD
    assert world is not None
    world.eager_connect_single_device(cuda)
    yield
    world.bound_device_id = None


@pytest.mark.usefixtures("device")
def test_parts_of_a_group(order: Group, own: int):
    last = order.size() - 1
    part = dist.split_group(order, [[last], list(range(last))], group_desc="part")
    assert part is not None
    assert part.group_desc == "part"
    members = [last] if own == last else list(range(last))
    assert (part.rank(), part.size()) == (members.index(own), len(members))
    dist.all_reduce(total := torch.tensor([own]), group=part)
    assert total.item() == sum(members)
    dist.all_gather(found := [torch.zeros(1) for _ in members], torch.ones(1) * own, group=part)
    assert [t.item() for t in found] == members
    dist.destroy_process_group(part)
    alone = dist.split_group(order, [[0]])
    is_outside = alone in (None, dist.GroupMember.NON_GROUP_MEMBER)  # the latter since torch 2.15
    assert is_outside == (own != 0)
    if not is_outside:
        dist.destroy_process_group(alone)
    dist.barrier()  # rank 0 may end with the store
