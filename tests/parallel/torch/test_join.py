"""join: what the others get while a rank has no more data, whoever it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import reference
import torch
from torch import Tensor

import horovod.torch as hvd

SHAPES = [(), (5,), (3, 7), (70_001,)]


@pytest.fixture(params=["first joins", "last joins", "all but the last join"])
def joined(request) -> list[int]:
    """The ranks that join at once."""
    if hvd.size() == 1:
        pytest.skip("one rank that joins leaves nobody behind")
    last = hvd.size() - 1
    return {"first joins": [0], "last joins": [last]}.get(request.param, list(range(last)))


def finish(joined: list[int]) -> None:
    """Join too, in an order that is known: who is last ends an operation without the others."""
    last = min(set(range(hvd.size())) - set(joined))
    if hvd.rank() == last:
        # It can end only when nobody else is left.
        mine = torch.tensor([3.0])
        assert hvd.allreduce(mine, op=hvd.Sum, name="alone").tolist() == [3.0]
    assert hvd.join() == last
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name="afterwards").tolist() == [hvd.size()] * 2


def with_zeros(inputs: list[Tensor], joined: list[int]) -> list[Tensor]:
    pairs = enumerate(inputs)
    return [torch.zeros_like(tensor) if rank in joined else tensor for rank, tensor in pairs]


def cases(dtype: torch.dtype) -> Iterator[list[Tensor]]:
    for shape in SHAPES:
        yield [reference.values(dtype, shape, rank) for rank in range(hvd.size())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
def test_allreduce_goes_on_with_zeros(joined, dtype):
    if hvd.rank() not in joined:
        for _ in range(2):  # the second time all names are known
            for index, inputs in enumerate(cases(dtype)):
                for op in reference.ops_of(dtype):
                    name = f"{dtype} {index} {op}"
                    result = hvd.allreduce(inputs[hvd.rank()], op=op, name=name)
                    given = with_zeros(inputs, joined)
                    if op == hvd.Adasum:
                        reference.assert_adasum(result, reference.adasum(given))
                    else:
                        assert torch.equal(result, reference.reduced(op, given))
    finish(joined)


def test_groups_go_on_with_zeros(joined):
    if hvd.rank() not in joined:
        inputs = list(zip(*cases(torch.float32), strict=True))
        results = hvd.grouped_allreduce(list(inputs[hvd.rank()]), name="group", op=hvd.Average)
        for result, *of_ranks in zip(results, *inputs, strict=True):
            given = with_zeros(of_ranks, joined)
            assert torch.equal(result, reference.reduced(hvd.Average, given))
    finish(joined)


def test_reducescatter_goes_on_with_zeros(joined):
    if hvd.rank() not in joined:
        for rows in (2, 9, 30_000):
            inputs = [reference.values(torch.float32, (rows, 3), r) for r in range(hvd.size())]
            result = hvd.reducescatter(inputs[hvd.rank()], name=f"scatter {rows}", op=hvd.Sum)
            begin, end = reference.rows_of_part(rows, hvd.size(), hvd.rank())
            whole = reference.reduced(hvd.Sum, with_zeros(inputs, joined))
            assert torch.equal(result, whole[begin:end])
        inputs = [reference.values(torch.float64, (5,), rank) for rank in range(hvd.size())]
        (result,) = hvd.grouped_reducescatter([inputs[hvd.rank()]], name="scatters", op=hvd.Sum)
        begin, end = reference.rows_of_part(5, hvd.size(), hvd.rank())
        assert torch.equal(
            result, reference.reduced(hvd.Sum, with_zeros(inputs, joined))[begin:end]
        )
    finish(joined)


def test_allgather_goes_on_without_their_rows(joined):
    if hvd.rank() not in joined:
        for rows in (1, 3000):
            inputs = [
                reference.values(torch.int64, (rows + rank, 3), rank) for rank in range(hvd.size())
            ]
            present = [inputs[rank] for rank in range(hvd.size()) if rank not in joined]
            for _ in range(2):
                result = hvd.allgather(inputs[hvd.rank()], f"gather {rows}")
                assert torch.equal(result, torch.cat(present))
            results = hvd.grouped_allgather([inputs[hvd.rank()]] * 2, "gathers")
            assert all(torch.equal(result, torch.cat(present)) for result in results)
    finish(joined)


def test_alltoall_goes_on_without_their_rows(joined):
    if hvd.rank() not in joined:
        ranks = range(hvd.size())
        sent = [[(source + target) % 3 + 1 for target in ranks] for source in ranks]
        inputs = [reference.values(torch.float32, (sum(sent[rank]), 2), rank) for rank in ranks]
        for _ in range(2):
            result, received = hvd.alltoall(inputs[hvd.rank()], sent[hvd.rank()], "alltoall")
            present = [[0] * hvd.size() if rank in joined else sent[rank] for rank in ranks]
            expected, counts = reference.exchanged(inputs, present, hvd.rank())
            assert torch.equal(result, expected)
            assert received.tolist() == counts
    finish(joined)


def test_broadcast_goes_on_but_from_them(joined):
    if hvd.rank() not in joined:
        for root in range(hvd.size()):
            mine = torch.full((40_000,), float(hvd.rank()))
            name = f"broadcast {root}"
            if root in joined:
                with pytest.raises(hvd.HorovodInternalError, match="not supported with Join"):
                    hvd.broadcast(mine, root, name)
            else:
                assert torch.equal(hvd.broadcast(mine, root, name), torch.full_like(mine, root))
    finish(joined)
    result = hvd.broadcast(torch.tensor([hvd.rank()]), joined[0], f"broadcast {joined[0]}")
    assert result.tolist() == [joined[0]]


def test_barrier_does_not_wait_for_them(joined):
    if hvd.rank() not in joined:
        hvd.barrier()
        hvd.barrier()
    finish(joined)


def test_disagreements_of_the_others_are_errors(joined):
    others = [rank for rank in range(hvd.size()) if rank not in joined]
    if hvd.rank() in others and len(others) > 1:
        with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
            hvd.allreduce(torch.ones(2 + (hvd.rank() == others[0])), name="disagree")
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="disagree").item() == len(others)
    finish(joined)


def test_what_was_in_flight_is_done(joined):
    """Started before the join, and waited for after it."""
    result = hvd.allreduce_async(torch.tensor([float(hvd.rank())]), op=hvd.Sum, name="before")
    finish(joined)
    assert hvd.synchronize(result).item() == sum(range(hvd.size()))


def test_every_rank_in_turn_has_more_data():
    """Batches of uneven number: rank r has r + 1 of them."""
    for batch in range(hvd.rank() + 1):
        result = hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum, name="batch")
        assert result.item() == hvd.size() - batch
    assert hvd.join() == hvd.size() - 1


def test_other_process_sets_work_on(process_sets):
    """A join is of the global set: operations of members of others end before and after it."""
    mine = [s for s in process_sets[1:] if s.included()]
    handles = [
        hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="inside", process_set=process_set)
        for process_set in mine
    ]
    assert hvd.join() in range(hvd.size())
    for handle, process_set in zip(handles, mine, strict=True):
        assert hvd.synchronize(handle).tolist() == [process_set.size()] * 3


def test_joins_follow_each_other():
    for _ in range(20):
        last = hvd.join(-1)
        assert hvd.allgather_object(last, name="last") == [last] * hvd.size()


def test_an_optimizer_that_joined_before_its_first_step_goes_on(joined):
    """It has not seen that the gradients of the others are dense."""
    param = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("late", param)])
    if hvd.rank() not in joined:
        param.sum().backward()
        optimizer.step()
    finish(joined)
    optimizer.zero_grad()
    param.sum().backward()
    optimizer.step()
    assert param.grad.tolist() == [1.0] * 3
