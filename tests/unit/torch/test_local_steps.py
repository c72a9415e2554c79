"""DiLoCo and LocalSGD in a world of one: what they refuse, and what they leave alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import horovod.torch as hvd


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def sgd(*params: torch.Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(params) or [nn.Parameter(torch.ones(2))], lr=0.5)


@pytest.mark.parametrize("make", [hvd.DiLoCo, hvd.LocalSGD])
def test_wrong_arguments_are_told_before_training(make):
    with pytest.raises(ValueError, match=f"{make.__name__}: sync_every must be .*, found 0"):
        make(sgd(), sync_every=0)
    with pytest.raises(ValueError, match=r"merge_weight must be in \(0, 1\], found 1000"):
        make(sgd(), sync_every=2, merge_weight=10**400)
    with pytest.raises(ValueError, match="at most the number of parameters, which is 1, found 2"):
        make(sgd(), sync_every=2, fragments=2)
    with pytest.raises(ValueError, match=r"must be a torch\.optim\.Optimizer, found 3"):
        make(3, sync_every=2)
    with pytest.raises(ValueError, match=r"such as hvd.Compression.fp16, found 'fp16'"):
        make(sgd(), sync_every=2, compression="fp16")
    powersgd = hvd.Compression.powersgd()
    with pytest.raises(
        ValueError, match=r"compression=powersgd\(.*\) cannot reduce single tensors"
    ):
        make(sgd(), sync_every=2, compression=powersgd)
    with pytest.raises(ValueError, match=r"process_set must be a ProcessSet, found \[0\]"):
        make(sgd(), sync_every=2, process_set=[0])


def test_a_distributed_optimizer_is_refused():
    for wrapped in (hvd.DistributedOptimizer(sgd()), hvd.DiLoCo(sgd(), sync_every=2)):
        with pytest.raises(ValueError, match="LocalSGD: this optimizer is distributed already"):
            hvd.LocalSGD(wrapped, sync_every=2)
    with pytest.raises(ValueError, match="DistributedOptimizer: this optimizer is distributed"):
        hvd.DistributedOptimizer(hvd.DiLoCo(sgd(), sync_every=2))


def test_sparse_and_complex_parameters_are_refused():
    sparse = nn.Parameter(torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match=r"found 'allreduce.noname.0.1' .*\[3, 3\], which is spa"):
        hvd.DiLoCo(sgd(nn.Parameter(torch.ones(1)), sparse), sync_every=2)
    with pytest.raises(ValueError, match=r"of shape \[1\], which is complex64"):
        hvd.DiLoCo(sgd(nn.Parameter(torch.ones(1, dtype=torch.complex64))), sync_every=2)


def test_frozen_parameters_stay_out_until_they_are_needed():
    trained, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3), requires_grad=False)
    optimizer = hvd.DiLoCo(sgd(trained, frozen), sync_every=1)
    trained.grad = torch.ones(2)
    optimizer.step()
    assert [len(agreed) for agreed in optimizer.state_dict()["local_steps"]["agreed"]] == [2]
    frozen.requires_grad = True
    with pytest.raises(ValueError, match=r"'allreduce.noname.0.1' requires a gradient, and did no"):
        optimizer.step()


def test_it_is_an_optimizer_like_the_wrapped_one():
    param = nn.Parameter(torch.ones(2))
    plain = sgd(param)
    optimizer = hvd.DiLoCo(plain, sync_every=2, outer_lr=1.0, outer_momentum=0.0)
    assert isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__name__ == "SGD"
    assert optimizer.param_groups is plain.param_groups
    param.grad = torch.ones(2)
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert torch.equal(param.data, torch.full((2,), 0.5))
    assert optimizer.step(lambda: 7) == 7
    assert torch.equal(param.data, torch.zeros(2))
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(optimizer)


def test_the_agreed_parameters_come_back_after_an_error():
    param = nn.Parameter(torch.ones(2))
    optimizer = hvd.LocalSGD(sgd(param), sync_every=3)
    param.grad = torch.ones(2)
    optimizer.step()

    def fail() -> None:
        with optimizer.agreed_parameters():
            assert torch.equal(param.data, torch.ones(2))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(param.data, torch.full((2,), 0.5))


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_of_two_layers_is_merged_once():
    shared, alone = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizers = [
        hvd.LocalSGD(sgd(*params), sync_every=2, overlap=1, name=str(len(params)))
        for params in ([shared, shared], [alone])
    ]
    shared.grad, alone.grad = torch.full((2,), 0.5), torch.ones(2)  # a step is made for each place
    for _ in range(4):
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(shared, alone)


def test_what_could_not_be_sent_is_not_merged():
    param = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = hvd.DiLoCo(sgd(param), sync_every=1, compression=hvd.Compression.int8)
    param.grad = torch.ones(2, dtype=torch.float64)
    with pytest.raises(ValueError, match="compression=int8 needs float32"):
        optimizer.step()
    state = optimizer.state_dict()["local_steps"]
    assert state["arrived"] == {}
    assert torch.equal(state["agreed"][0], torch.ones(2, dtype=torch.float64))


def test_a_state_that_does_not_fit_leaves_what_was_agreed():
    param = nn.Parameter(torch.ones(2))
    optimizer = hvd.LocalSGD(sgd(param), sync_every=2)
    param.grad = torch.ones(2)
    optimizer.step()
    state = optimizer.state_dict()
    with pytest.raises(ValueError, match="'agreed' has 1 tensors"):
        optimizer.load_state_dict(
            {**state, "local_steps": {**state["local_steps"], "agreed": [param[:1]]}}
        )
    with optimizer.agreed_parameters():
        assert torch.equal(param.data, torch.ones(2))


def test_what_was_not_sent_stays_with_its_parameter():
    """It is kept by fragment and place."""
    params = [nn.Parameter(torch.zeros(40, 40)) for _ in range(6)]
    options = {"sync_every": 3, "compression": hvd.Compression.topk(0.1)}
    optimizer = hvd.LocalSGD(sgd(*params), fragments=3, **options)
    for _ in range(3):
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
    state = optimizer.state_dict()
    assert state["compression_errors"]["errors"]
    other = hvd.LocalSGD(sgd(*params), fragments=2, **options)
    with pytest.raises(ValueError, match=r"with fragments=3, expected 2, .*'compression_errors'"):
        other.load_state_dict(state)
    del state["compression_errors"]
    other.load_state_dict(state)
    assert other.local_step == 3


def test_parameters_that_have_just_come_are_saved():
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer = hvd.DiLoCo(sgd(first), sync_every=2)
    optimizer.step()
    optimizer.add_param_group({"params": [second]})
    state = optimizer.state_dict()
    assert [len(agreed) for agreed in state["local_steps"]["agreed"]] == [2, 3]
    optimizer.load_state_dict(state)
    assert optimizer.local_step == 1


def test_channels_last_parameters():
    param = nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
    expected = param.detach() - 0.5
    optimizer = hvd.LocalSGD(sgd(param), sync_every=1)
    param.grad = torch.ones_like(param)
    optimizer.step()
    torch.testing.assert_close(param.detach(), expected)
    assert param.is_contiguous(memory_format=torch.channels_last)
