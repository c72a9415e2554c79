"""allreduce and reducescatter: dtype x shape x op x form x process set against the reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import reference
import torch
from sets import Digest
from torch import Tensor

import horovod.torch as hvd

SHAPES = [(), (0,), (1,), (17,), (3, 5), (64, 1025)]
# Of reducescatter: uneven parts, fewer rows than ranks, none at all.
ROWS = [(8, 3), (7,), (2, 5), (1,), (0, 4), (5, 0), (61, 1025)]


def singly(call: Callable[..., Tensor], name: str, tensors: list[Tensor], **options):
    return [call(tensor, name=f"{name}.{i}", **options) for i, tensor in enumerate(tensors)]


def in_flight(call: Callable[..., int], name: str, tensors: list[Tensor], **options):
    handles = [call(tensor, name=f"{name}.{i}", **options) for i, tensor in enumerate(tensors)]
    return [hvd.synchronize(handle) for handle in reversed(handles)][::-1]


def together(call: Callable[..., list[Tensor]], name: str, tensors: list[Tensor], **options):
    return list(call(tensors, name=name, **options))


def together_in_flight(call: Callable[..., int], name: str, tensors: list[Tensor], **options):
    return list(hvd.synchronize(call(tensors, name=name, **options)))


ALLREDUCES = {
    "blocking": (singly, hvd.allreduce),
    "in place": (singly, hvd.allreduce_),
    "async": (in_flight, hvd.allreduce_async),
    "async in place": (in_flight, hvd.allreduce_async_),
    "grouped": (together, hvd.grouped_allreduce),
    "grouped in place": (together, hvd.grouped_allreduce_),
    "grouped async": (together_in_flight, hvd.grouped_allreduce_async),
    "grouped async in place": (together_in_flight, hvd.grouped_allreduce_async_),
}
REDUCESCATTERS = {
    "blocking": (singly, hvd.reducescatter),
    "async": (in_flight, hvd.reducescatter_async),
    "grouped": (together, hvd.grouped_reducescatter),
    "grouped async": (together_in_flight, hvd.grouped_reducescatter_async),
}


def inputs_of(process_set: hvd.ProcessSet, dtype: torch.dtype, shape: tuple[int, ...]):
    return [reference.values(dtype, shape, rank) for rank in process_set.ranks]


def check_allreduce(
    form: str, process_set: hvd.ProcessSet, op: int, mine: list[Tensor], expected: list[Tensor]
):
    """One form of allreduce on one tensor of each shape."""
    run, call = ALLREDUCES[form]
    tensors = [tensor.clone() for tensor in mine]
    results = run(call, f"{form}.{op}", tensors, op=op, process_set=process_set)
    for before, tensor, result, wanted in zip(mine, tensors, results, expected, strict=True):
        assert (result.shape, result.dtype) == (before.shape, before.dtype)
        if "in place" in form:
            assert result is tensor
        else:
            assert torch.equal(tensor, before)
        if op == hvd.Adasum:
            reference.assert_adasum(result, wanted)
        else:
            assert torch.equal(result, wanted), (form, op, before.shape)
    return results


def expected_allreduce(op: int, inputs: list[Tensor]) -> Tensor:
    return reference.adasum(inputs) if op == hvd.Adasum else reference.reduced(op, inputs)


@pytest.mark.parametrize("dtype", reference.DTYPES, ids=str)
def test_allreduce(process_sets, dtype):
    digest = Digest()
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        cases = [inputs_of(process_set, dtype, shape) for shape in SHAPES]
        mine = [inputs[process_set.rank()] for inputs in cases]
        for op in reference.ops_of(dtype):
            expected = [expected_allreduce(op, inputs) for inputs in cases]
            for form in ALLREDUCES:
                for result in check_allreduce(form, process_set, op, mine, expected):
                    digest.add(process_set, reference.bits(result))
    digest.check()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_sums_of_16_bit_floats_are_rounded_once(dtype, op):
    """Values of very different size: rounding after every rank would be off by many units."""
    scale = torch.tensor([1.0, 1000.0, 0.01]).repeat(10_000)
    inputs = [
        (reference.values(torch.float32, (30_000,), rank) * scale.roll(rank)).to(dtype)
        for rank in range(hvd.size())
    ]
    result = hvd.allreduce(inputs[hvd.rank()], op=op, name="rounded")
    exact = torch.stack([tensor.double() for tensor in inputs]).sum(0)
    exact /= hvd.size() if op == hvd.Average else 1
    unit = torch.finfo(dtype).eps * exact.abs() + torch.finfo(dtype).smallest_normal
    assert ((result.double() - exact).abs() <= unit).all()
    assert torch.equal(result, reference.reduced(op, inputs))


@pytest.mark.parametrize("dtype", reference.FLOATS + reference.INTEGERS, ids=str)
def test_factors(process_sets, dtype):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        inputs = inputs_of(process_set, dtype, (1000,))
        mine = inputs[process_set.rank()]
        for op in (hvd.Sum, hvd.Average, hvd.Max, hvd.Product):
            for factors in [(2.0, 1.0), (1.0, 3.0), (0.5, 4.0)]:
                result = hvd.allreduce(
                    mine, None, "factors", hvd.Compression.none, op, *factors, process_set
                )
                expected = reference.reduced(op, inputs, *factors)
                assert reference.is_reduced(result, expected, process_set), (op, factors)


@pytest.mark.parametrize("dtype", reference.INTEGERS, ids=str)
def test_integers_wrap_around(dtype):
    largest = torch.iinfo(dtype).max
    result = hvd.allreduce(torch.full((40,), largest, dtype=dtype), op=hvd.Sum, name="wrap")
    bits = torch.iinfo(dtype).bits
    wrapped = (largest * hvd.size()) % 2**bits
    expected = wrapped - 2**bits if wrapped > largest else wrapped
    assert result.tolist() == [expected] * 40


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Min, hvd.Max, hvd.Product, hvd.Average])
def test_infinities_and_nans_reach_every_rank(op):
    if reference.OVER_NCCL and op in (hvd.Min, hvd.Max):
        pytest.skip("NCCL's Min and Max ignore NaN")
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    mine = special if hvd.rank() == hvd.size() - 1 else torch.ones(4)
    result = hvd.allreduce(mine, op=op, name="special")
    inputs = [torch.ones(4)] * (hvd.size() - 1) + [special]
    torch.testing.assert_close(
        result, reference.reduced(op, inputs), rtol=0, atol=0, equal_nan=True
    )


def check_reducescatter(form: str, process_set: hvd.ProcessSet, cases, **options):
    run, call = REDUCESCATTERS[form]
    mine = [inputs[process_set.rank()] for inputs in cases]
    results = run(call, form, mine, process_set=process_set, **options)
    factors = options.get("prescale_factor", 1.0), options.get("postscale_factor", 1.0)
    for inputs, result in zip(cases, results, strict=True):
        whole = reference.reduced(options["op"], inputs, *factors)
        begin, end = reference.rows_of_part(len(whole), process_set.size(), process_set.rank())
        assert result.dtype == whole.dtype
        is_right = reference.is_reduced(result, whole[begin:end], process_set)
        assert is_right, (form, options, whole.shape)


@pytest.mark.parametrize("dtype", reference.FLOATS + reference.INTEGERS, ids=str)
def test_reducescatter(process_sets, dtype):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        cases = [inputs_of(process_set, dtype, shape) for shape in ROWS]
        for form in REDUCESCATTERS:
            check_reducescatter(form, process_set, cases, op=hvd.Average)
            check_reducescatter(form, process_set, cases, op=hvd.Sum)
            check_reducescatter(
                form, process_set, cases, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0
            )


def test_reducescatter_of_bool():
    inputs = [reference.values(torch.bool, (9, 2), rank) for rank in range(hvd.size())]
    result = hvd.reducescatter(inputs[hvd.rank()], op=hvd.Sum)
    begin, end = reference.rows_of_part(9, hvd.size(), hvd.rank())
    assert torch.equal(result, reference.reduced(hvd.Sum, inputs)[begin:end])


def test_a_group_of_many_dtypes_and_shapes():
    count = 4 * len(reference.DTYPES)
    dtypes = (reference.DTYPES * 4)[:count]
    inputs = [
        [reference.values(dtype, (i, 3), rank) for i, dtype in enumerate(dtypes)]
        for rank in range(hvd.size())
    ]
    for op in (hvd.Sum, hvd.Max):
        results = hvd.grouped_allreduce(inputs[hvd.rank()], name="mixed", op=op)
        for result, *of_ranks in zip(results, *inputs, strict=True):
            assert torch.equal(result, reference.reduced(op, of_ranks))
