"""DistributedOptimizer: arguments, names and the class it makes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from horovod.core.operations import Adasum, Average, Max, Sum
from horovod.core.process_sets import ProcessSet
from horovod.torch import optimizer as optimizer_module
from horovod.torch import parameters
from horovod.torch.optimizer import DistributedOptimizer


@pytest.fixture
def model():
    return nn.Linear(2, 3)


@pytest.fixture
def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def backward(model):
    model(torch.ones(1, 2)).sum().backward()


@pytest.mark.usefixtures("engine")
def test_class_and_shared_contents(sgd):
    wrapped = DistributedOptimizer(sgd)
    assert type(wrapped).__name__ == "SGD"
    assert isinstance(wrapped, torch.optim.SGD)
    assert type(wrapped) is not torch.optim.SGD
    assert wrapped.param_groups[0] is sgd.param_groups[0]
    assert wrapped.state is sgd.state
    assert wrapped.state_dict().keys() == sgd.state_dict().keys()
    assert "SGD" in repr(wrapped)


@pytest.mark.usefixtures("engine")
def test_constructor_of_the_original_does_not_run_again(model):
    class Odd(torch.optim.SGD):
        def __init__(self, model, must_be_given):
            super().__init__(model.parameters(), lr=must_be_given)

    assert type(DistributedOptimizer(Odd(model, 0.5))).__name__ == "Odd"


def test_names(engine, model, sgd):
    wrapped = DistributedOptimizer(sgd, model.named_parameters())
    assert wrapped._parameter_names == {model.weight: "weight", model.bias: "bias"}
    backward(model)
    assert sorted(engine.names[0]) == ["allreduce.bias", "allreduce.weight"]


def test_default_names(engine, model):
    groups = [{"params": [model.weight]}, {"params": [model.bias]}]
    wrapped = DistributedOptimizer(torch.optim.SGD(groups, lr=0.1))
    assert wrapped._parameter_names[model.bias] == "allreduce.noname.1.0"


@pytest.mark.parametrize(
    ("op", "factor", "expected"),
    [
        (Average, 1.0, (Average, 1.0, 1.0)),
        (Sum, 1.0, (Sum, 1.0, 1.0)),
        (Average, 4.0, (0, 0.25, 4)),
    ],
)
def test_operation(engine, model, sgd, op, factor, expected):
    wrapped = DistributedOptimizer(sgd, op=op, gradient_predivide_factor=factor)
    backward(model)
    wrapped.step()
    assert engine.submissions[0].operation == expected


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"named_parameters": ["weight"]}, "tuples"),
        ({"named_parameters": [("a", 1, 2)]}, "tuples"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step"),
        ({"backward_passes_per_step": "2"}, "a whole number of at least 1, found '2'"),
        ({"op": 17}, "op=17: expected one of Average, Sum"),
        ({"op": "average"}, "op='average': expected one of Average, Sum"),
        ({"op": Sum, "gradient_predivide_factor": 2.0}, "needs op=Average"),
        ({"op": Max, "gradient_predivide_factor": 2.0}, "needs op=Average"),
        ({"gradient_predivide_factor": 0.0}, "positive"),
        ({"groups": "all"}, "groups must be"),
        ({"groups": -2}, "groups must be positive"),
        ({"groups": [[1]]}, "hold tensors only"),
    ],
)
def test_bad_arguments(sgd, options, text):
    with pytest.raises(ValueError, match=text):
        DistributedOptimizer(sgd, **options)


@pytest.mark.usefixtures("engine")
def test_bad_names(model, sgd):
    with pytest.raises(ValueError, match=r"unique; duplicates: same"):
        DistributedOptimizer(sgd, [("same", model.weight), ("same", model.bias)])
    with pytest.raises(ValueError, match=r"every parameter.*group 0 index 1 of shape \[3\]"):
        DistributedOptimizer(sgd, [("weight", model.weight)])


@pytest.mark.usefixtures("engine")
def test_not_an_optimizer(model, sgd):
    with pytest.raises(ValueError, match="must be a torch"):
        DistributedOptimizer(model)
    with pytest.raises(ValueError, match="distributed already"):
        DistributedOptimizer(DistributedOptimizer(sgd))


@pytest.mark.usefixtures("engine")
def test_passes_per_step_must_stay_positive(sgd):
    wrapped = DistributedOptimizer(sgd)
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        wrapped.set_backward_passes_per_step(0)


def test_world_of_one_has_no_hooks(monkeypatch, model, sgd):
    monkeypatch.setattr(optimizer_module, "size", lambda: 1)
    wrapped = DistributedOptimizer(sgd)
    assert not model.weight._post_accumulate_grad_hooks
    before = model.weight.detach().clone()
    backward(model)
    backward(model)
    wrapped.step()
    wrapped.zero_grad()
    assert not torch.equal(model.weight, before)


def test_skip_synchronize_ends_after_an_exception(engine, model, sgd):
    wrapped = DistributedOptimizer(sgd)
    with pytest.raises(KeyError), wrapped.skip_synchronize():
        raise KeyError
    backward(model)
    wrapped.step()
    assert engine.waited == [1]


class OtherSet(ProcessSet):
    """A registered process set that is not the global one."""

    def __init__(self, size, included):
        super().__init__([0, 1])
        self.process_set_id = 1
        self._size = size
        self._included = included

    def size(self):
        return self._size

    def included(self):
        return self._included


def test_process_set(engine, model, sgd):
    inside = OtherSet(2, True)
    wrapped = DistributedOptimizer(sgd, process_set=inside)
    backward(model)
    wrapped.step()
    assert [submission.process_set for submission in engine.submissions] == [inside]


@pytest.mark.parametrize("op", [Average, Adasum])
@pytest.mark.parametrize("members", [(2, False), (1, True)])
def test_rank_that_reduces_with_nobody(engine, model, sgd, op, members):
    wrapped = DistributedOptimizer(sgd, process_set=OtherSet(*members), op=op, groups=2)
    assert not model.weight._post_accumulate_grad_hooks
    backward(model)
    wrapped.zero_grad()
    wrapped.step()
    assert engine.submissions == []


@pytest.mark.usefixtures("engine")
def test_unregistered_process_set(sgd):
    with pytest.raises(ValueError, match="not registered"):
        DistributedOptimizer(sgd, process_set=OtherSet(None, None))


def test_groups_of_parameters(engine, model, sgd):
    named = model.named_parameters()
    wrapped = DistributedOptimizer(sgd, named, groups=[[model.bias, model.weight]])
    backward(model)
    wrapped.step()
    assert engine.names == [["bias.group"]]


@pytest.mark.usefixtures("engine")
def test_num_groups_is_deprecated(monkeypatch, sgd):
    monkeypatch.setattr(parameters, "broadcast_object", lambda obj, **_: obj)
    with pytest.warns(DeprecationWarning, match="num_groups") as warned:
        DistributedOptimizer(sgd, num_groups=1)
    assert warned[0].filename == __file__


def test_only_grad_scaler_makes_a_property_synchronize(engine, model, sgd):
    wrapped = DistributedOptimizer(sgd)
    backward(model)
    assert wrapped._step_supports_amp_scaling is False
    assert engine.waited == []
    wrapped._step_supports_amp_scaling = True
    assert wrapped._step_supports_amp_scaling is True
    wrapped.step()
    assert engine.waited == [1]


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="this torch has none for CPUs")
def test_grad_scaler_reduces_once(engine, model, sgd):
    wrapped = DistributedOptimizer(sgd)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for factor in (1.0, float("inf"), 1.0):
        scaler.scale(model(torch.ones(1, 2)).sum() * factor).backward()
        scaler.step(wrapped)
        scaler.update()
        wrapped.zero_grad()
    assert engine.waited == [1, 2, 3]
    backward(model)
    wrapped.step()
    assert engine.waited == [1, 2, 3, 4]


def test_a_world_of_one_reduces_if_it_may_grow(engine, monkeypatch, model, sgd):
    monkeypatch.setattr(optimizer_module, "size", lambda: 1)
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    wrapped = DistributedOptimizer(sgd, model.named_parameters())
    backward(model)
    wrapped.step()
    assert sorted(engine.names[0]) == ["allreduce.bias", "allreduce.weight"]


def test_groups_ask_nobody_in_an_elastic_job(engine, monkeypatch, model, sgd):
    """Who comes later would ask alone."""
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    monkeypatch.setattr(parameters, "broadcast_object", None)
    wrapped = DistributedOptimizer(sgd, model.named_parameters(), groups=1)
    backward(model)
    wrapped.step()
    assert len(engine.submissions) == 1
