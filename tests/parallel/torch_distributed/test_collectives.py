"""The collectives: values, dtypes, layouts, futures, groups."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import horovod.torch as hvd

# torch announces new names for some functions.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
MOVED = [torch.float32, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn]


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def ranks() -> list[int]:
    return list(range(size()))


def layouts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The same values: contiguous, transposed, every second column of a wider tensor."""
    wide = torch.zeros(tensor.shape[0], 2 * tensor.shape[1], dtype=tensor.dtype)
    wide[:, ::2] = tensor
    return [tensor.clone(), tensor.t().contiguous().t(), wide[:, ::2]]


def test_it_is_the_world_of_hvd():
    assert (rank(), size()) == (hvd.rank(), hvd.size())
    assert dist.get_backend() == "horovod"


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_sum(dtype: torch.dtype):
    for tensor in layouts(torch.full((2, 3), rank() + 1).to(dtype)):
        dist.all_reduce(tensor)
        assert tensor.tolist() == [[sum(r + 1 for r in ranks())] * 3] * 2


def test_lazily_negated_views():
    values = torch.full((2, 3), complex(1, rank() + 1))
    total = sum(r + 1 for r in ranks())
    dist.all_reduce(negated := values.conj().imag)
    assert negated.tolist() == [[-total] * 3] * 2


def test_ranks_agree_about_elements_not_shapes():
    tensor = torch.ones(4, 3) if rank() == 0 else torch.ones(12)
    dist.all_reduce(tensor)
    assert tensor.tolist() == (torch.ones_like(tensor) * size()).tolist()
    dist.broadcast(tensor, 0)
    dist.all_reduce(scalar := torch.tensor(1.0))
    assert (scalar.item(), scalar.shape) == (size(), ())


def test_parameters_are_written_in_place():
    parameter = torch.nn.Parameter(torch.full((3,), 1.0 + rank()))
    with torch.no_grad():
        dist.broadcast(parameter, 0)
        dist.all_reduce(parameter)
    assert parameter.tolist() == [size()] * 3


@pytest.mark.skipif(not hasattr(dist.AllreduceOptions, "asyncOp"), reason="since torch 2.7")
def test_a_blocking_call_of_the_group_has_a_work():
    options = dist.AllreduceOptions()
    options.asyncOp = False
    work = dist.group.WORLD.allreduce([tensor := torch.ones(2)], options)
    assert work.is_completed()
    assert work.is_success()
    assert work.wait()
    assert work.result()[0] is tensor
    assert work.get_future().value()[0].tolist() == [size()] * 2


def test_other_ops():
    expected = {
        ReduceOp.MAX: size(),
        ReduceOp.MIN: 1,
        ReduceOp.AVG: (size() + 1) / 2,
        ReduceOp.PRODUCT: torch.arange(1, size() + 1).prod().item(),
    }
    for op, value in expected.items():
        tensor = torch.full((5,), rank() + 1.0)
        dist.all_reduce(tensor, op)
        assert tensor.tolist() == [value] * 5
    tensor = torch.ones(2)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    assert tensor.tolist() == [size() / 2] * 2


def test_bits():
    for op, value in (
        (ReduceOp.BOR, (1 << size()) - 1),
        (ReduceOp.BAND, 1 if size() == 1 else 0),
        (ReduceOp.BXOR, (1 << size()) - 1),
    ):
        tensor = torch.tensor([1 << rank()])
        dist.all_reduce(tensor, op)
        assert tensor.item() == value
    with pytest.raises(ValueError, match=r"BOR of torch\.float32 is not defined"):
        dist.all_reduce(torch.ones(1), ReduceOp.BOR)


def test_complex_numbers():
    for tensor in layouts(torch.full((2, 2), rank() + 1j)):
        dist.all_reduce(tensor)
        assert tensor[1, 1] == complex(sum(ranks()), size())
    with pytest.raises(ValueError, match="MAX"):
        dist.all_reduce(torch.ones(1, dtype=torch.complex64), ReduceOp.MAX)


def test_sparse_tensors():
    rows = torch.sparse_coo_tensor(
        [[0, rank() + 1]], [[1.0, 1.0], [2.0, 2.0]], (size() + 1, 2), check_invariants=True
    )
    dist.all_reduce(rows)
    expected = [[float(size())] * 2, *([[2.0, 2.0]] * size())]
    assert rows.to_dense().tolist() == expected


def test_several_as_one_operation():
    tensors = [torch.full((n + 1,), float(rank())) for n in range(3)]
    dist.all_reduce_coalesced(tensors)
    assert [t.tolist() for t in tensors] == [[float(sum(ranks()))] * (n + 1) for n in range(3)]


@pytest.mark.parametrize("dtype", MOVED)
def test_moving(dtype: torch.dtype):
    def of(source: int) -> torch.Tensor:
        return torch.tensor([[source % 2, 1], [0, 1], [1, source % 2]]).to(dtype)

    def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
        return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))

    for own in layouts(of(rank())):
        found = [torch.empty_like(own) for _ in ranks()]
        dist.all_gather(found, own)
        assert all(equal(found[r], of(r)) for r in ranks())
    into = torch.empty(3 * size(), 2, dtype=dtype)
    dist.all_gather_into_tensor(into, of(rank()))
    assert equal(into, torch.cat([of(r).view(torch.uint8) for r in ranks()]).view(dtype))
    for tensor in layouts(of(rank())):
        dist.broadcast(tensor, size() - 1)
        assert equal(tensor, of(size() - 1))


def test_gather_and_scatter():
    last = size() - 1
    own = torch.full((2,), float(rank()))
    found = [torch.empty(2) for _ in ranks()] if rank() == last else None
    dist.gather(own, found, dst=last)
    assert found is None or [t.tolist() for t in found] == [[float(r)] * 2 for r in ranks()]
    parts = [torch.full((2, 2), float(r)) for r in ranks()] if rank() == last else None
    for target in layouts(torch.zeros(2, 2)):
        dist.scatter(target, parts, src=last)
        assert target.tolist() == [[float(rank())] * 2] * 2


def test_reduce_to_one():
    tensor = torch.full((3,), rank() + 1.0)
    dist.reduce(tensor, dst=size() - 1)
    expected = sum(r + 1.0 for r in ranks()) if rank() == size() - 1 else rank() + 1.0
    assert tensor.tolist() == [expected] * 3


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MAX])
def test_reduce_scatter(op: ReduceOp.RedOpType):
    whole = sum(ranks()) if op == ReduceOp.SUM else size() - 1
    output = torch.zeros(2)
    dist.reduce_scatter_tensor(output, torch.full((2 * size(),), float(rank())), op)
    assert output.tolist() == [whole] * 2
    uneven = [torch.full((r + 1,), float(rank())) for r in ranks()]
    output = torch.zeros(rank() + 1)
    dist.reduce_scatter(output, uneven, op)
    assert output.tolist() == [whole] * (rank() + 1)


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR])
def test_reduce_scatter_leaves_its_input_alone(op: ReduceOp.RedOpType):
    own = [1 << rank()] * (2 * size())
    whole, output = torch.tensor(own), torch.zeros(2, dtype=torch.int64)
    dist.reduce_scatter_tensor(output, whole, op)
    assert whole.tolist() == own
    bits = [1 << r for r in ranks()]
    assert output.tolist() == [max(bits) if op == ReduceOp.MAX else sum(bits)] * 2


def test_alltoall():
    own = torch.arange(size()) + 10 * rank()
    output = torch.empty_like(own)
    dist.all_to_all_single(output, own)
    assert output.tolist() == [10 * r + rank() for r in ranks()]
    # Rank r sends r + 1 rows to each.
    rows = torch.full(((rank() + 1) * size(), 2), float(rank()))
    output = torch.empty(sum(r + 1 for r in ranks()), 2)
    dist.all_to_all_single(output, rows, [r + 1 for r in ranks()], [rank() + 1] * size())
    assert output[:, 0].tolist() == [float(r) for r in ranks() for _ in range(r + 1)]
    outputs = [torch.empty(rank() + 1) for _ in ranks()]
    dist.all_to_all(outputs, [torch.full((r + 1,), float(rank())) for r in ranks()])
    assert [t.tolist() for t in outputs] == [[float(r)] * (rank() + 1) for r in ranks()]


def test_objects():
    found: list[object] = [None] * size()
    dist.all_gather_object(found, {"rank": rank()})
    assert found == [{"rank": r} for r in ranks()]
    given = [rank(), "text"]
    dist.broadcast_object_list(given, src=size() - 1)
    assert given == [size() - 1, "text"]


def test_empty_tensors():
    tensor = torch.empty(0, 3)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    into = torch.empty(0)
    dist.all_gather_into_tensor(into, torch.empty(0))
    assert into.numel() == 0


def test_works_and_futures():
    work = dist.all_reduce(first := torch.ones(3), async_op=True)
    other = dist.all_reduce(second := torch.ones(3), async_op=True)
    assert other.wait()
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert first.tolist() == second.tolist() == [size()] * 3
    work = dist.all_reduce(torch.ones(3), async_op=True)
    doubled = work.get_future().then(lambda future: 2 * future.value()[0])
    assert doubled.wait().tolist() == [2 * size()] * 3
    assert work.get_future() is work.get_future()
    assert work.wait()


def test_futures_of_many_operations_in_another_order():
    works = [dist.all_reduce(torch.full((n + 1,), 1.0), async_op=True) for n in range(20)]
    futures = [work.get_future() for work in reversed(works)]
    sums = [future.wait()[0].sum().item() for future in reversed(futures)]
    assert sums == [size() * (n + 1) for n in range(20)]


@pytest.mark.skipif("int(__import__('os').environ['HOROVOD_SIZE']) < 2", reason="one rank")
def test_subgroups_overlap():
    groups = [dist.new_group([r for r in ranks() if r != left_out]) for left_out in ranks()]
    for left_out, group in enumerate(groups):
        if rank() == left_out:
            continue
        tensor = torch.full((4,), float(rank()))
        dist.all_reduce(tensor, group=group)
        assert tensor[0] == sum(ranks()) - left_out
        root = min(r for r in ranks() if r != left_out)
        dist.broadcast(tensor := torch.tensor([rank()]), root, group=group)
        assert tensor.item() == root
    for left_out, group in enumerate(groups):
        if rank() != left_out:
            dist.destroy_process_group(group)


def test_both_interfaces_at_once():
    work = dist.all_reduce(tensor := torch.ones(4), async_op=True)
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [size()] * 2
    work.wait()
    assert tensor.tolist() == [size()] * 4


def test_monitored_barrier(group: dist.ProcessGroup):
    group.monitored_barrier()
