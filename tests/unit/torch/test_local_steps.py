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
    with pytest.raises(ValueError, match=r"compression must be a Compressor .* found 'fp16'"):
        make(sgd(), sync_every=2, compression="fp16")
    powersgd = hvd.Compression.powersgd()
    with pytest.raises(ValueError, match="compression=PowerSGD cannot reduce single tensors"):
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


def test_channels_last_parameters():
    param = nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
    expected = param.detach() - 0.5
    optimizer = hvd.LocalSGD(sgd(param), sync_every=1)
    param.grad = torch.ones_like(param)
    optimizer.step()
    torch.testing.assert_close(param.detach(), expected)
    assert param.is_contiguous(memory_format=torch.channels_last)
