"""Local steps that send the largest elements of what ranks have changed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from horovod.torch import topk

SHAPES = (60, 50), (200, 400), (5,)  # the last one travels exactly


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]


def gradient(rank: int, number: int, index: int) -> torch.Tensor:
    generator = torch.Generator(torch.get_default_device())
    generator.manual_seed(10_000 * rank + 10 * number + index)
    return torch.randn(SHAPES[index], generator=generator)


def train(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: range) -> None:
    """SGD with a learning rate of 1 takes each gradient off the parameter."""
    for number in steps:
        for index, param in enumerate(params):
            param.grad = gradient(hvd.rank(), number, index)
        optimizer.step()


def local_sgd(params: list[nn.Parameter], ratio: float = 0.05, **options):
    compression = hvd.Compression.topk(ratio, half=options.pop("half", False))
    return hvd.LocalSGD(torch.optim.SGD(params, lr=1.0), compression=compression, **options)


def errors_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return list(optimizer.state_dict()["compression_errors"]["errors"].values())


def assert_all_is_there(optimizer, params, steps: int) -> None:
    """What has not arrived is in the errors, and nothing else."""
    errors = [*errors_of(optimizer), torch.zeros(5)]
    for index, (param, error) in enumerate(zip(params, errors, strict=True)):
        missing = hvd.allreduce(error, name=f"error.{index}")
        given = sum(gradient(r, n, index) for r in range(hvd.size()) for n in range(steps))
        close = {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(-param.detach(), given / hvd.size() - missing, **close)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("schedule", [{}, {"fragments": 2}])
def test_what_has_not_arrived_is_in_the_errors(half, schedule, assert_same_everywhere):
    params = parameters()
    optimizer = local_sgd(params, sync_every=2, half=half, **schedule)
    train(optimizer, params, range(6))
    optimizer.finish()
    assert_same_everywhere(params)
    assert all(error.abs().max() > 0.1 for error in errors_of(optimizer))
    assert_all_is_there(optimizer, params, 6)


def test_all_elements_are_what_no_compression_gives(assert_same_everywhere):
    schedule = {"sync_every": 4, "fragments": 2, "overlap": 1}
    params, plain = parameters(), parameters()
    optimizer = local_sgd(params, ratio=1.0, **schedule)
    train(optimizer, params, range(9))
    optimizer.finish()
    other = hvd.LocalSGD(torch.optim.SGD(plain, lr=1.0), **schedule)
    train(other, plain, range(9))
    other.finish()
    assert_same_everywhere(params)
    for param, expected in zip(params, plain, strict=True):
        torch.testing.assert_close(param, expected, rtol=1e-5, atol=1e-5)


def test_a_loaded_run_goes_on_with_the_same_bits():
    schedule = {"sync_every": 4, "fragments": 2, "overlap": 1}
    params, others = parameters(), parameters()
    optimizer = local_sgd(params, **schedule)
    train(optimizer, params, range(6))
    state = copy.deepcopy(optimizer.state_dict())
    with torch.no_grad():
        for param, other in zip(params, others, strict=True):
            other.copy_(param)
    again = local_sgd(others, **schedule)
    again.load_state_dict(state)
    for stepper, each in ((optimizer, params), (again, others)):
        train(stepper, each, range(6, 14))
        stepper.finish()
    assert all(map(torch.equal, params, others))


def test_what_is_given_up_is_sent_again(assert_same_everywhere):
    params = parameters()
    optimizer = local_sgd(params, sync_every=4, overlap=2, merge_weight=1.0)
    train(optimizer, params, range(4))
    optimizer.drop()
    train(optimizer, params, range(4, 8))
    optimizer.finish()
    assert_same_everywhere(params)
    assert_all_is_there(optimizer, params, 8)


def test_an_agreement_that_fails_leaves_others_alone(monkeypatch, assert_same_everywhere):
    """As they were before: both fragments are on their way when the first one is merged."""
    params = parameters()
    optimizer = local_sgd(params, sync_every=4, fragments=2, overlap=3, merge_weight=1.0)
    train(optimizer, params, range(4))
    with monkeypatch.context() as patch:
        patch.setattr(topk, "_take", _refuse)
        with pytest.raises(hvd.HorovodInternalError, match="refused"):
            train(optimizer, params, range(4, 5))
    train(optimizer, params, range(5, 9))
    optimizer.finish()
    assert_same_everywhere(params)


def _refuse(*_args):
    raise hvd.HorovodInternalError("refused")


def test_names_of_layers_and_of_the_optimizer_say_nothing():
    if hvd.size() == 1:
        pytest.skip("one rank sends nothing")
    params = parameters()
    optimizer = local_sgd(params, sync_every=2, name="my_normal_run.bias")
    train(optimizer, params, range(2))
    assert len(errors_of(optimizer)) == 2


def test_vectors_are_exact(assert_same_everywhere):
    params = [nn.Parameter(torch.zeros(5000)), nn.Parameter(torch.zeros(5000, 1))]
    optimizer = local_sgd(params, sync_every=1)
    for param in params:
        param.grad = torch.full_like(param, float(hvd.rank()))
    optimizer.step()
    expected = torch.full((5000,), -(hvd.size() - 1) / 2)
    torch.testing.assert_close(params[0].detach(), expected, rtol=1e-6, atol=1e-6)
    assert hvd.size() == 1 or params[1].count_nonzero() < 1000
    assert_same_everywhere(params)


def test_an_elastic_state_needs_rank_zero():
    if hvd.size() == 1:
        pytest.skip("needs a set without rank 0")
    others = hvd.add_process_set([hvd.size() - 1])
    optimizer = local_sgd(parameters(), sync_every=2, process_set=others)
    state = hvd.elastic.TorchState(optimizer=optimizer)
    with pytest.raises(ValueError, match=r"of rank 0, which is not in the process set"):
        state.sync()
    hvd.remove_process_set(others)


def test_a_rank_that_has_joined_counts_as_unchanged():
    if hvd.size() == 1:
        pytest.skip("needs others")
    params = parameters()
    optimizer = local_sgd(params, ratio=1.0, sync_every=1)
    if hvd.rank() != hvd.size() - 1:
        train(optimizer, params, range(1))
        for index, param in enumerate(params):
            given = sum(gradient(rank, 0, index) for rank in range(hvd.size() - 1))
            torch.testing.assert_close(-param.detach(), given / hvd.size(), rtol=1e-5, atol=1e-5)
    hvd.join()


def test_other_options_on_a_rank_are_told():
    if hvd.size() == 1:
        pytest.skip("needs a rank that differs")
    text = r"rank 1 has compression='topk\(ratio=0.1, half=False\)', rank 0 .*ratio=0.2"
    with pytest.raises(ValueError, match=text):
        local_sgd(parameters(), ratio=0.1 if hvd.rank() else 0.2, sync_every=2)


def test_an_elastic_state_goes_back_with_the_errors(assert_same_everywhere):
    params = parameters()
    optimizer = local_sgd(params, sync_every=2)
    state = hvd.elastic.TorchState(optimizer=optimizer)
    state.sync()
    train(optimizer, params, range(4))
    state.commit()
    before = [error.clone() for error in errors_of(optimizer)]
    train(optimizer, params, range(4, 7))
    state.restore()
    state.sync()
    assert all(map(torch.equal, errors_of(optimizer), before))
    train(optimizer, params, range(4, 7))
    optimizer.finish()
    assert_same_everywhere(params)
