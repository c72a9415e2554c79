"""sparse_allreduce_async against the sum of the dense tensors."""

from __future__ import annotations

import pytest
import reference
import torch
from torch import Tensor

import horovod.torch as hvd
from horovod.torch import adapter

SHAPE = (7, 3)


def sparse_of(rank: int, dtype: torch.dtype, entries: int) -> Tensor:
    """Entries in random places, the same place more than once among them; rank 0 has none."""
    entries = 0 if rank == 0 else entries + rank
    generator = torch.Generator(torch.get_default_device()).manual_seed(rank)
    places = torch.stack([torch.randint(0, n, (entries,), generator=generator) for n in SHAPE])
    values = reference.values(dtype, (entries,), rank)
    return torch.sparse_coo_tensor(places, values, SHAPE, check_invariants=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_equals_the_dense_sum(process_sets, dtype, op):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        pending = []
        for entries in (1, 4, 200):
            inputs = [sparse_of(rank, dtype, entries) for rank in process_set.ranks]
            name = None if entries == 4 else f"sparse {entries}"
            mine = inputs[process_set.rank()]
            pending.append((inputs, hvd.sparse_allreduce_async(mine, name, op, process_set)))
        for inputs, synchronize in reversed(pending):
            result = synchronize()
            assert result.shape == SHAPE
            assert result.layout == torch.sparse_coo
            values = result._values()
            assert len(values) == sum(len(tensor._values()) for tensor in inputs)
            check(op, result, inputs, process_set.size())


def check(op: int, result: Tensor, inputs: list[Tensor], size: int) -> None:
    parts = [part.to_dense().double() for part in inputs]
    if op == hvd.Average and result.dtype == torch.int64:
        # Entries are divided one by one and truncated, as there is no sum yet.
        parts = [
            torch.sparse_coo_tensor(
                part._indices(),
                torch.div(part._values(), size, rounding_mode="trunc"),
                SHAPE,
                check_invariants=True,
            ).to_dense()
            for part in inputs
        ]
        size = 1
    expected = torch.stack([part.double() for part in parts]).sum(0)
    expected /= size if op == hvd.Average else 1
    torch.testing.assert_close(result.to_dense().double(), expected, rtol=1e-5, atol=1e-5)


def test_ranks_without_any_entries():
    empty = torch.sparse_coo_tensor(
        torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), SHAPE, check_invariants=True
    )
    result = hvd.sparse_allreduce_async(empty, "empty", hvd.Sum)()
    assert result.shape == SHAPE
    assert result._values().numel() == 0


def test_rows_as_values():
    """An embedding's gradient: one index dimension, values that are rows."""
    indices = torch.tensor([[hvd.rank(), 5]])
    values = torch.full((2, 4), hvd.rank() + 1.0)
    mine = torch.sparse_coo_tensor(indices, values, (6, 4), check_invariants=True)
    result = hvd.sparse_allreduce_async(mine, "rows", hvd.Sum)().to_dense()
    expected = torch.zeros(6, 4)
    for rank in range(hvd.size()):
        expected[rank] += rank + 1
        expected[5] += rank + 1
    assert torch.equal(result, expected)


def test_ranks_that_disagree_can_go_on():
    if hvd.size() == 1:
        pytest.skip("one rank cannot disagree")
    count = 2 if hvd.rank() == 0 else 3
    values = torch.ones(1, count)
    mine = torch.sparse_coo_tensor(
        torch.zeros(1, 1, dtype=torch.int64), values, (4, count), check_invariants=True
    )
    for _ in range(2):
        synchronize = hvd.sparse_allreduce_async(mine, "wide", hvd.Sum)
        with pytest.raises(hvd.HorovodInternalError, match=r"wide\.values"):
            synchronize()
    test_rows_as_values()


def test_a_refused_dtype_leaves_the_name_free():
    mine = torch.eye(4).to_sparse()
    odd = torch.sparse_coo_tensor(
        mine.indices(), torch.ones(4).to(torch.float8_e4m3fn), (4, 4), check_invariants=True
    )
    with pytest.raises(ValueError, match="not supported"):
        hvd.sparse_allreduce_async(odd, "refused", hvd.Sum)
    result = hvd.sparse_allreduce_async(mine, "refused", hvd.Sum)()
    assert torch.equal(result.to_dense(), torch.eye(4) * hvd.size())


@pytest.mark.parametrize(
    ("position", "changed"), [((0, 0), -1), ((0, 0), SHAPE[0]), ((-1, 1), 2**40)]
)
def test_an_altered_index_is_an_error(monkeypatch, position, changed):
    """Kernels write wherever an index says, so none that has no place gets there."""
    genuine = adapter.synchronize

    def altered(handle: int) -> Tensor:
        result = genuine(handle)
        if result.dtype == torch.int64:
            result[position] = changed
        return result

    monkeypatch.setattr(adapter, "synchronize", altered)
    dim = position[1]
    expected = rf"'altered'.*{changed}.* dimension {dim}, expected 0 to {SHAPE[dim] - 1}.*LINK_PROT"
    mine = sparse_of(hvd.rank() + 1, torch.float32, 4)
    with pytest.raises(hvd.HorovodInternalError, match=expected):
        hvd.sparse_allreduce_async(mine, "altered", hvd.Sum)()
    monkeypatch.undo()
    assert hvd.sparse_allreduce_async(mine, "altered", hvd.Sum)().shape == SHAPE
