"""DiLoCo and LocalSGD: what a simulation of all ranks comes to, and what travels."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from local_steps_reference import CASES, INNER_LR, SHAPES, initial, reference, target
from torch import Tensor, nn

import horovod.torch as hvd
from horovod.errors import MismatchError

STEPS = 13


def parameters(dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    return [nn.Parameter(torch.as_tensor(value, dtype=dtype)) for value in initial()]


def step(optimizer: torch.optim.Optimizer, params: list, number: int) -> None:
    """A step of the reference's inner optimizer."""
    optimizer.zero_grad()
    for index, param in enumerate(params):
        goal = torch.as_tensor(target(hvd.rank(), number, index), dtype=param.dtype)
        param.grad = (param.detach() - goal).to(param.device)
    optimizer.step()


def train(optimizer: torch.optim.Optimizer, params: list, steps: range) -> None:
    for number in steps:
        step(optimizer, params, number)


def sgd(params: list) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=INNER_LR)


def assert_close(params: list[Tensor], expected: list, rtol: float = 1e-12) -> None:
    for param, value in zip(params, expected, strict=True):
        found = param.detach().cpu().double().numpy()
        np.testing.assert_allclose(found, value, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("case", CASES)
def test_it_comes_to_what_a_simulation_comes_to(case, assert_same_everywhere):
    params = parameters()
    optimizer = hvd.DiLoCo(sgd(params), **CASES[case][0])
    expected = reference(case, hvd.size())
    for number in range(1, STEPS + 1):
        step(optimizer, params, number)
        assert_close(params, expected.run(1)[hvd.rank()])
    state = optimizer.state_dict()["local_steps"]
    assert_close(state["agreed"], expected.agreed)
    assert_same_everywhere([*state["agreed"], *state["momentum"]])


def test_float32_is_equal_to_rounding():
    params = parameters(torch.float32)
    train(hvd.DiLoCo(sgd(params), **CASES["streaming"][0]), params, range(1, STEPS + 1))
    assert_close(params, reference("streaming", hvd.size()).run(STEPS)[hvd.rank()], 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_outer_state_of_half_precision_is_float32(dtype, assert_same_everywhere):
    params = parameters(dtype)
    optimizer = hvd.DiLoCo(sgd(params), sync_every=2)
    train(optimizer, params, range(1, 5))
    state = optimizer.state_dict()["local_steps"]
    assert {tensor.dtype for tensor in state["agreed"] + state["momentum"]} == {torch.float32}
    assert_same_everywhere(params)
    for param, agreed in zip(params, state["agreed"], strict=True):
        assert torch.equal(param, agreed.to(dtype))


def test_local_sgd_averages_parameters(make_model, batch_of, assert_same_everywhere):
    """Of any inner optimizer, whose state stays that of each rank."""
    model, alone = make_model(), make_model()
    optimizer = hvd.LocalSGD(torch.optim.Adam(model.parameters(), 0.01), sync_every=3)
    plain = torch.optim.Adam(alone.parameters(), 0.01)
    for number in range(6):
        for each, stepper in ((model, optimizer), (alone, plain)):
            stepper.zero_grad()
            each(batch_of(hvd.rank(), number)).square().mean().backward()
            stepper.step()
        if number % 3 == 2:
            for param, own in zip(model.parameters(), alone.parameters(), strict=True):
                with torch.no_grad():
                    own.copy_(hvd.allreduce(own.detach(), name="own"))
                torch.testing.assert_close(param, own, rtol=1e-6, atol=1e-7)
    assert_same_everywhere(list(model.parameters()))
    assert type(optimizer).__name__ == "Adam"


def test_finish_gives_the_agreed_model(assert_same_everywhere):
    params = parameters()
    optimizer = hvd.DiLoCo(sgd(params), **CASES["streaming"][0])
    train(optimizer, params, range(1, 8))
    optimizer.finish()
    assert_same_everywhere(params)
    finished = [param.detach().clone() for param in params]
    optimizer.finish()  # nothing has changed since
    assert all(map(torch.equal, params, finished))
    train(optimizer, params, range(8, STEPS))
    optimizer.finish()
    assert_same_everywhere(params)


def test_agreed_parameters_for_an_evaluation(assert_same_everywhere):
    params = parameters()
    optimizer = hvd.DiLoCo(sgd(params), sync_every=3)
    with optimizer.agreed_parameters():
        assert_close(params, initial())
    train(optimizer, params, range(1, 3))
    own = [param.detach().clone() for param in params]
    with optimizer.agreed_parameters():
        assert_close(params, initial())
        assert_same_everywhere(params)
    assert all(map(torch.equal, params, own))


def test_compression_is_of_the_outer_gradients(assert_same_everywhere):
    params = parameters(torch.float32)
    optimizer = hvd.DiLoCo(sgd(params), sync_every=3, compression=hvd.Compression.bf16)
    before = hvd.metrics()["allreduce_bytes"]
    train(optimizer, params, range(1, 4))
    elements = sum(param.numel() for param in params)
    assert hvd.metrics()["allreduce_bytes"] - before == 2 * elements
    assert_same_everywhere(params)
    assert_close(params, reference("plain", hvd.size()).run(3)[hvd.rank()], 0.02)


def test_a_four_hundredth_of_the_bytes_is_sent():
    params = parameters(torch.float32)
    bf16 = hvd.Compression.bf16
    optimizer = hvd.DiLoCo(sgd(params), sync_every=200, fragments=2, compression=bf16)
    synchronous = parameters(torch.float32)
    plain = hvd.DistributedOptimizer(sgd(synchronous))

    def bytes_of(stepper, params) -> float:
        before = hvd.metrics()["allreduce_bytes"]
        for _ in range(200):
            for param in params:
                param.sum().backward()
            stepper.step()
            stepper.zero_grad()
        return hvd.metrics()["allreduce_bytes"] - before

    sent = bytes_of(optimizer, params)
    assert sent == 2 * sum(param.numel() for param in params)
    assert hvd.size() == 1 or bytes_of(plain, synchronous) >= 400 * sent


def test_a_process_set_agrees_and_others_step_alone():
    if hvd.size() < 3:
        pytest.skip("needs a set of several that is not the world")
    params = parameters()
    members = hvd.add_process_set([0, hvd.size() - 1])
    optimizer = hvd.DiLoCo(sgd(params), sync_every=2, process_set=members)
    train(optimizer, params, range(1, 5))
    optimizer.finish()
    if members.included():
        mine = torch.cat([param.detach().reshape(-1) for param in params])
        both = hvd.allgather(mine.unsqueeze(0), process_set=members)
        assert torch.equal(both[0], both[-1])
    else:
        alone = parameters()
        train(sgd(alone), alone, range(1, 5))
        assert all(map(torch.equal, params, alone))
    hvd.remove_process_set(members)


def test_a_rank_that_has_joined_counts_as_unchanged():
    if hvd.size() == 1:
        pytest.skip("needs others")
    params = parameters()
    optimizer = hvd.LocalSGD(sgd(params), sync_every=1)
    if hvd.rank() != hvd.size() - 1:
        step(optimizer, params, 1)
        for index, param in enumerate(params):
            begin = initial()[index]
            others = [
                begin - INNER_LR * (begin - target(rank, 1, index))
                for rank in range(hvd.size() - 1)
            ]
            assert_close([param], [np.mean([*others, begin], axis=0)])
    hvd.join()


def after_join(steps: range) -> tuple[torch.optim.Optimizer, list, int]:
    """Optimizer and parameters; the first rank has made two steps less, and missed an agreement."""
    params = parameters()
    optimizer = hvd.LocalSGD(sgd(params), sync_every=2)
    is_early = hvd.rank() == 0 and hvd.size() > 1
    train(optimizer, params, steps[:-2] if is_early else steps)
    return optimizer, params, hvd.join()


def test_finish_refuses_what_a_rank_that_had_joined_has_agreed_on():
    """Each rank would end with a model of its own."""
    if hvd.size() == 1:
        pytest.skip("needs ranks that differ")
    optimizer, _, _ = after_join(range(1, 8))
    with pytest.raises(MismatchError, match=r"LocalSGD: .* sent \[0, 0, \d+\]"):
        optimizer.finish()


def test_a_rank_that_had_joined_goes_on_after_broadcasts(assert_same_everywhere):
    optimizer, params, last = after_join(range(1, 8))
    hvd.broadcast_parameters(params, last)
    hvd.broadcast_optimizer_state(optimizer, last)
    train(optimizer, params, range(8, 12))
    optimizer.finish()
    assert_same_everywhere(params)


@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.topk(0.5)])
def test_ranks_that_are_out_of_step_are_told(compression):
    """A rank finishes, and the others take it for one that comes to their agreement."""
    if hvd.size() == 1:
        pytest.skip("needs ranks that differ")
    params = parameters()
    optimizer = hvd.LocalSGD(sgd(params), sync_every=4, compression=compression)
    text = r"LocalSGD: all ranks must call step\(\) and finish\(\) equally.* sent \[0, [04], \d+\]"
    train(optimizer, params, range(1, 4))
    agree = optimizer.finish if hvd.rank() == 0 else partial(step, optimizer, params, 4)
    with pytest.raises(MismatchError, match=text):
        agree()
    params = parameters()
    optimizer = hvd.LocalSGD(sgd(params), sync_every=4, compression=compression)
    train(optimizer, params, range(1, 4 if hvd.rank() else 3))
    optimizer.finish()  # with the same agreements behind them


@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.topk(0.5)])
@pytest.mark.parametrize("finishes", [False, True])
def test_ranks_that_begin_with_different_parameters_are_told(compression, finishes):
    if hvd.size() == 1:
        pytest.skip("needs ranks that differ")
    params = parameters()
    params[1].data += hvd.rank()
    optimizer = hvd.LocalSGD(sgd(params), sync_every=3, compression=compression)
    text = r"LocalSGD: all ranks must .*begin with equal parameters \(hvd.broadcast_parameters\)"
    train(optimizer, params, range(1, 3))
    with pytest.raises(MismatchError, match=text):
        optimizer.finish() if finishes else train(optimizer, params, range(3, 4))
    hvd.broadcast_parameters(dict(enumerate(params)), 0)
    optimizer = hvd.LocalSGD(sgd(params), sync_every=3, compression=compression)
    train(optimizer, params, range(1, 4))


def test_an_added_group_joins_the_last_fragment(assert_same_everywhere):
    params = parameters()
    optimizer = hvd.DiLoCo(sgd(params[:3]), sync_every=4, fragments=2, overlap=2, merge_weight=1)
    train(optimizer, params[:3], range(1, 6))
    optimizer.add_param_group({"params": params[3:], "lr": INNER_LR})
    train(optimizer, params, range(6, 15))
    optimizer.finish()
    assert_same_everywhere(params)
    assert len(optimizer.state_dict()["local_steps"]["agreed"]) == len(SHAPES)


def test_schedulers_and_closures(assert_same_everywhere):
    params = parameters()
    optimizer = hvd.DiLoCo(sgd(params), sync_every=2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum((param - hvd.rank()).square().sum() for param in params)
        loss.backward()
        return loss

    losses = []
    for _ in range(4):
        losses.append(optimizer.step(closure).item())
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == INNER_LR / 4
    assert optimizer.local_step == 4
    assert losses[-1] < losses[0] or hvd.size() > 1
    assert_same_everywhere(params)


def test_infinite_gradients_on_one_rank_leave_out_its_step_only(assert_same_everywhere):
    """A rank with infinite gradients calls ``step``, too, so no rank waits for it."""
    params = parameters(torch.float32)
    optimizer = hvd.LocalSGD(sgd(params), sync_every=1)
    scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=4.0)
    for number in range(1, 3):
        optimizer.zero_grad()
        loss = sum((param - 1).square().sum() for param in params)
        if number == 1 and hvd.rank() == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.local_step == 2
    assert_same_everywhere(params)
    moved = (hvd.size() - 1) / hvd.size() * 0.2
    expected = initial()[0] + moved * (1 - initial()[0])
    assert_close(params[:1], [expected + 0.2 * (1 - expected)], 1e-5)
