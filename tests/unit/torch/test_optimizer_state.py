"""StateLayout: what one optimizer describes, another takes over."""

from __future__ import annotations

import cloudpickle
import pytest
import torch
from torch import nn

from horovod.torch.functions import (
    TensorEntry,
    apply_layout,
    describe_state,
    find_conflict,
)


def make_optimizer(steps, cls=torch.optim.Adam, shape=(2, 3), **options):
    param = nn.Parameter(torch.ones(shape))
    optimizer = cls([param], **options)
    for _ in range(steps):
        param.grad = torch.ones(shape)
        optimizer.step()
    return optimizer, param


def test_tensors_are_described_by_shape_and_dtype():
    optimizer, _ = make_optimizer(1)
    layout = cloudpickle.loads(cloudpickle.dumps(describe_state(optimizer)))
    assert layout.state[0]["exp_avg"] == TensorEntry((2, 3), torch.float32, True)
    assert layout.state[0]["step"].shape == ()
    assert "params" not in layout.groups[0]


def test_room_is_made_and_rest_removed():
    layout = describe_state(make_optimizer(1, lr=0.5)[0])
    optimizer, param = make_optimizer(0, lr=0.1)
    optimizer.state[param].update(other=1, exp_avg=torch.zeros(7))
    tensors = dict(apply_layout(optimizer, layout, keep=False))
    assert set(tensors) == {f"optimizer_state.0.{k}" for k in ("step", "exp_avg", "exp_avg_sq")}
    assert optimizer.state[param].keys() == {"step", "exp_avg", "exp_avg_sq"}
    assert tensors["optimizer_state.0.exp_avg"] is optimizer.state[param]["exp_avg"]
    assert optimizer.state[param]["exp_avg"].shape == (2, 3)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_root_keeps_its_own():
    optimizer, param = make_optimizer(2)
    state = dict(optimizer.state[param])
    tensors = apply_layout(optimizer, describe_state(optimizer), keep=True)
    assert len(tensors) == 3
    for key, value in state.items():
        assert optimizer.state[param][key] is value


def test_state_that_the_root_lacks_is_removed():
    layout = describe_state(make_optimizer(0)[0])
    optimizer, param = make_optimizer(1)
    assert apply_layout(optimizer, layout, keep=False) == []
    assert param not in optimizer.state


def test_options_are_replaced():
    layout = describe_state(make_optimizer(0, lr=0.5)[0])
    optimizer, param = make_optimizer(0)
    optimizer.param_groups[0]["mine"] = True
    apply_layout(optimizer, layout, keep=False)
    assert "mine" not in optimizer.param_groups[0]
    assert optimizer.param_groups[0]["params"] == [param]


@pytest.mark.parametrize(
    ("shape", "text"),
    [((2, 3), None), ((3, 2), r"has shape [3, 2] at group 0 index 0, the root [2, 3]")],
)
def test_conflicts(shape, text):
    layout = describe_state(make_optimizer(0)[0])
    assert find_conflict(make_optimizer(0, shape=shape)[0], layout) == text


def test_conflict_of_groups():
    layout = describe_state(make_optimizer(0)[0])
    optimizer, _ = make_optimizer(0)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert find_conflict(optimizer, layout) == (
        "has parameter groups of [1, 1] parameters, the root of [1]"
    )


def test_conflict_of_classes():
    layout = describe_state(make_optimizer(0, torch.optim.SGD, lr=0.1)[0])
    assert find_conflict(make_optimizer(0)[0], layout) == "has Adam, the root SGD"
