"""What both frameworks share of top-k and PowerSGD: options, and how much is sent."""

from __future__ import annotations

import numpy as np
import pytest

from horovod.core.compression import (
    ExactCompressor,
    LinkFormat,
    PowerSGDCompressor,
    TopKCompressor,
    keeps_tensors,
    link_format_of,
)
from horovod.core.operations import Adasum, Average, Max, Sum, check_summing


@pytest.mark.parametrize(
    ("ratio", "elements", "count"),
    [(0.01, 1000, 10), (0.01, 1, 1), (0.001, 100, 1), (0.29, 100, 29), (1.0, 77, 77), (1, 5, 5)],
)
def test_topk_sends_so_many(ratio, elements, count):
    assert TopKCompressor(ratio).count(elements) == count


@pytest.mark.parametrize("ratio", [0, -0.1, 1.01, float("nan"), True, None, "0.1"])
def test_bad_ratios_are_refused(ratio):
    with pytest.raises(ValueError, match="topk: ratio must be above 0 and at most 1, found"):
        TopKCompressor(ratio)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rank": 0}, "rank must be an integer >= 1, found 0"),
        ({"rank": 1.5}, "rank must be an integer >= 1, found 1.5"),
        ({"start_after": -1}, "start_after must be an integer >= 0, found -1"),
        ({"start_after": True}, "start_after must be an integer >= 0, found True"),
        ({"min_compression_rate": 0.0}, "min_compression_rate must be positive, found 0.0"),
        ({"min_compression_rate": "2"}, "min_compression_rate must be positive, found '2'"),
    ],
)
def test_bad_options_of_powersgd_are_refused(options, text):
    with pytest.raises(ValueError, match=f"powersgd: {text}"):
        PowerSGDCompressor(**options)


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((40, 30), (40, 30, 2)),
        ((32, 8, 3, 3), (32, 72, 2)),
        ((8, 7), None),
        ((1000,), None),
        ((), None),
        ((0, 100), None),
        ((1, 1000), None),
    ],
)
def test_matrices_that_become_smaller(shape, found):
    assert PowerSGDCompressor(rank=2).matrix_of(shape) == found


def test_the_first_q_depends_on_name_and_seed():
    seeds = {PowerSGDCompressor(seed=s).seed_of(name) for s in (0, 1) for name in ("a", "b")}
    assert len(seeds) == 4
    assert all(0 <= seed < 1 << 32 for seed in seeds)


def test_short_numbers_of_numpy_do_not_overflow():
    assert TopKCompressor(np.float16(0.5)).count(1_000_000) == 500_000
    assert PowerSGDCompressor(1, min_compression_rate=np.float16(2)).matrix_of((50_000, 9))


@pytest.mark.parametrize("compressor", [TopKCompressor, PowerSGDCompressor])
def test_single_operations_are_refused(compressor):
    with pytest.raises(ValueError, match=f"Compression.{compressor.title} remembers errors"):
        compressor().compress([1.0])


def test_only_sums_have_errors_to_make_good():
    for op in (Average, Sum):
        check_summing(op, "topk")
    for op, name in ((Max, "Max"), (Adasum, "Adasum"), (99, "99")):
        with pytest.raises(ValueError, match=f"topk reduces with op=.*, found op={name}"):
            check_summing(op, "topk")


def test_exact_ones_travel_exactly_whatever_is_set():
    assert link_format_of(ExactCompressor) is LinkFormat.EXACT
    assert keeps_tensors(ExactCompressor)
