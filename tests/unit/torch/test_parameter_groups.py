"""The ``groups`` argument: what is accepted, and what it means."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from horovod.core.process_sets import global_process_set
from horovod.torch import parameters
from horovod.torch.parameters import check_groups, choose_groups, split_evenly


@pytest.fixture
def params():
    return [nn.Parameter(torch.zeros(size)) for size in (1, 2, 3)]


@pytest.fixture
def names(params):
    return {param: f"p{index}" for index, param in enumerate(params)}


@pytest.mark.parametrize("groups", [None, 0, []])
def test_no_groups(groups):
    assert check_groups(groups, 0) is None


def test_number_and_lists(params):
    assert check_groups(2, 0) == 2
    assert check_groups([params[:2]], 0) == [params[:2]]


def test_num_groups_is_deprecated(params):
    with pytest.warns(DeprecationWarning, match="num_groups"):
        assert check_groups(None, 3) == 3
    with pytest.warns(DeprecationWarning, match="num_groups"):
        assert check_groups([params], 3) == [params]


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (-1, "positive, found -1"),
        ("two", "found str"),
        (1.5, "found float"),
        ([torch.zeros(1)], "found Tensor as group 0"),
        ([[torch.zeros(1)], ["weight"]], "found str in group 1"),
    ],
)
def test_unusable(groups, text):
    with pytest.raises(ValueError, match=text):
        check_groups(groups, 0)


def test_tensor_in_two_groups(params):
    with pytest.raises(ValueError, match=r"shape \[2\] is in groups 0 and 1"):
        check_groups([params[:2], params[1:]], 0)


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, [5]), (2, [2, 3]), (3, [1, 2, 2]), (9, [1, 1, 1, 1, 1])]
)
def test_split_evenly(count, sizes):
    items = list(range(5))
    groups = split_evenly(items, count)
    assert [len(group) for group in groups] == sizes
    assert [item for group in groups for item in group] == items
    assert split_evenly([], count) == []


def test_lists_keep_what_is_trained_here(params, names):
    params[1].requires_grad_(False)
    groups = [[params[1]], [torch.zeros(7), params[2], params[0]]]
    chosen = choose_groups(groups, names, params, global_process_set)
    assert chosen == [[params[2], params[0]]]


def test_number_follows_the_first_rank(monkeypatch, params, names):
    sent = []

    def broadcast_object(obj, root_rank, name, process_set):
        sent.append((obj, root_rank, process_set))
        return ["p2", "p0"]

    monkeypatch.setattr(parameters, "broadcast_object", broadcast_object)
    params[1].requires_grad_(False)
    chosen = choose_groups(2, names, params, global_process_set)
    assert chosen == [[params[2]], [params[0]]]
    assert sent == [(["p0", "p2"], 0, global_process_set)]
    params[1].requires_grad_(True)
    with pytest.raises(ValueError, match=r"rank 0 has .*'p2', 'p0'.* this rank .*'p1'"):
        choose_groups(2, names, params, global_process_set)
