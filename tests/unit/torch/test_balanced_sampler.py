"""BalancedSampler: how samples are split by speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.torch.balanced_sampler import BalancedSampler, split_by_speed


@given(
    st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9),
    st.integers(0, 500),
)
def test_parts_are_proportional(speeds, more):
    count = len(speeds) + more
    parts = split_by_speed(speeds, count)
    assert sum(parts) == count
    for part, speed in zip(parts, speeds, strict=True):
        assert part >= 1
        assert abs(part - 1 - more * speed / sum(speeds)) <= 1


def test_an_unknown_speed_counts_as_the_mean():
    assert split_by_speed([0.0, 1.0, 1.0], 9) == [3, 3, 3]
    assert split_by_speed([0.0, 0.0], 5) == [3, 2]


@pytest.mark.parametrize("option", ["batch_size", "every"])
@pytest.mark.parametrize("value", [0, "3", 2.5, None])
def test_numbers_must_be_whole_and_positive(option, value):
    text = f"BalancedSampler: {option} must be a whole number of at least 1, found {value!r}"
    with pytest.raises(ValueError, match=text):
        BalancedSampler(range(3), **{option: value})
