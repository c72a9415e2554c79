"""Elastic training in a world of fixed size: fail, restore, start the engine again, go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from horovod.errors import HostsUpdatedInterrupt, MismatchError
from horovod.torch.elastic import ElasticSampler, TorchState

STEPS = 6
DATA = torch.randn(44, 6, generator=torch.Generator(torch.get_default_device()).manual_seed(11))


@pytest.fixture(autouse=True)
def _initialised_afterwards() -> Iterator[None]:
    yield
    hvd.init()


class Plan:
    """At which steps this process fails how; each entry happens once."""

    def __init__(self, **failures: object) -> None:
        self.failures = failures
        self.calls = 0

    def at(self, place: str) -> None:
        failure = self.failures.pop(place, None)
        if failure is not None:
            raise failure


def make_state(make_model, **more) -> TorchState:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    return TorchState(model, optimizer, step=0, **more)


def take_step(state: TorchState, inputs: torch.Tensor, plan: Plan) -> None:
    """Gradients are reset last, as some scripts do, so a failed step leaves its own behind."""
    state.model(inputs).square().mean().backward()
    plan.at(f"backward{state.step}")
    state.optimizer.step()
    state.optimizer.zero_grad()
    plan.at(f"stepped{state.step}")
    state.step += 1


@hvd.elastic.run
def train(state: TorchState, batch_of, plan: Plan) -> list[torch.Tensor]:
    plan.calls += 1
    while state.step < STEPS:
        take_step(state, batch_of(hvd.rank(), state.step), plan)
        if state.step % 2 == 0:
            state.commit()
    return [param.detach().clone() for param in state.model.parameters()]


@pytest.fixture
def undisturbed(make_model, batch_of) -> list[torch.Tensor]:
    """Weights after training without any failure."""
    return train(make_state(make_model), batch_of, Plan())


def check(weights, undisturbed, assert_same_everywhere) -> None:
    for ours, expected in zip(weights, undisturbed, strict=True):
        assert torch.equal(ours, expected)
    assert_same_everywhere(weights)


def error(text: str = "injected") -> Exception:
    return hvd.HorovodInternalError(text)


@pytest.mark.parametrize("place", ["backward0", "stepped2", "backward3", "stepped5"])
def test_all_ranks_fail_once(make_model, batch_of, undisturbed, assert_same_everywhere, place):
    plan = Plan(**{place: error()})
    weights = train(make_state(make_model), batch_of, plan)
    assert plan.calls == 2
    check(weights, undisturbed, assert_same_everywhere)


def test_one_rank_fails(make_model, batch_of, undisturbed, assert_same_everywhere):
    failing = hvd.rank() == hvd.size() - 1
    plan = Plan(backward3=error()) if failing else Plan()
    weights = train(make_state(make_model), batch_of, plan)
    assert plan.calls == 2
    check(weights, undisturbed, assert_same_everywhere)


def test_ranks_fail_in_turn(make_model, batch_of, undisturbed, assert_same_everywhere):
    plan = Plan(**{f"stepped{1 + hvd.rank()}": error()})
    weights = train(make_state(make_model), batch_of, plan)
    assert plan.calls == 1 + hvd.size()
    check(weights, undisturbed, assert_same_everywhere)


def test_the_engine_ends_under_the_training(
    make_model, batch_of, undisturbed, assert_same_everywhere
):
    state = make_state(make_model)
    plan = Plan()
    ended = []

    @hvd.elastic.run
    def ending(state: TorchState) -> list[torch.Tensor]:
        if not ended and state.step == 0:
            ended.append(True)
            take_step(state, batch_of(hvd.rank(), 0), plan)
            hvd.shutdown()
            raise error()
        return train(state, batch_of, plan)

    check(ending(state), undisturbed, assert_same_everywhere)


def test_rank_zero_decides_where_all_go_on(make_model, assert_same_everywhere):
    sampler = ElasticSampler(range(40))
    sampler.record_batch(0, 1 + hvd.rank())
    state = make_state(make_model, name=f"rank {hvd.rank()}", sampler=sampler)
    with torch.no_grad():
        for param in state.model.parameters():
            param.add_(hvd.rank())
    state.step = 10 + hvd.rank()
    state.optimizer.param_groups[0]["lr"] = 0.5 + hvd.rank()
    state.save()
    state.sync()
    assert (state.step, state.name) == (10, "rank 0")
    assert sampler.processed_num == hvd.size()
    assert len(sampler.remaining_indices) == 40 - hvd.size()
    assert state.optimizer.param_groups[0]["lr"] == 0.5
    assert_same_everywhere(list(state.model.parameters()))
    with torch.no_grad():
        state.model[0].weight.zero_()
    state.restore()
    assert_same_everywhere(list(state.model.parameters()))
    assert torch.equal(state.model[0].weight, make_model()[0].weight)


def test_all_ranks_go_on_from_the_file_of_rank_zero(make_model, assert_same_everywhere, tmp_path):
    path = Path(hvd.broadcast_object(str(tmp_path / "state")))
    state = make_state(make_model)
    state.step = 3 + hvd.rank()
    state.optimizer.param_groups[0]["lr"] = 0.5
    state.commit()
    state.save(path)
    hvd.barrier()
    loaded = make_state(make_model)
    with torch.no_grad():
        for param in loaded.model.parameters():
            param.add_(1 + hvd.rank())
    if path.exists():
        loaded.load(path)

    @hvd.elastic.run
    def go_on(state: TorchState) -> tuple[int, float]:
        return state.step, state.optimizer.param_groups[0]["lr"]

    assert go_on(loaded) == (3, 0.5)
    assert_same_everywhere(list(loaded.model.parameters()))
    assert torch.equal(loaded.model[0].weight, make_model()[0].weight)


class Counting(nn.Linear):
    """A module with state beside its tensors."""

    seen: tuple[int, ...] = ()

    def get_extra_state(self) -> dict:
        return {"seen": self.seen, "length": torch.ones(len(self.seen))}

    def set_extra_state(self, state: dict) -> None:
        assert len(state["length"]) == len(state["seen"])
        self.seen = state["seen"]


def test_extra_state_of_a_module():
    model = nn.Sequential(Counting(2, 2), nn.Linear(2, 2))
    model[0].seen = tuple(range(hvd.rank() + 2))
    nn.init.constant_(model[1].weight, hvd.rank())
    state = TorchState(model)
    state.sync()
    assert model[0].seen == (0, 1)
    assert torch.equal(model[1].weight, torch.zeros(2, 2))
    model[0].seen = (7,)
    state.restore()
    assert model[0].seen == (0, 1)


def test_new_hosts_keep_what_was_not_committed(make_model, batch_of):
    state = make_state(make_model)
    sizes = []
    state.register_reset_callbacks([lambda: sizes.append(hvd.size())])

    @hvd.elastic.run
    def interrupted(state: TorchState) -> int:
        if state.step == 0:
            take_step(state, batch_of(hvd.rank(), 0), Plan())
            raise HostsUpdatedInterrupt
        return state.step

    assert interrupted(state) == 1
    assert sizes == [hvd.size()]


def test_new_hosts_between_backward_and_step(
    make_model, batch_of, undisturbed, assert_same_everywhere
):
    plan = Plan(backward3=HostsUpdatedInterrupt())
    weights = train(make_state(make_model), batch_of, plan)
    assert plan.calls == 2
    check(weights, undisturbed, assert_same_everywhere)


def test_updates_noted_on_all_ranks_interrupt_all(make_model):
    state = make_state(make_model)
    calls = []

    @hvd.elastic.run
    def updated(state: TorchState) -> None:
        calls.append(state.step)
        state.step += 1
        if len(calls) == 1:
            state.on_hosts_updated(5 if hvd.rank() == 0 else 1, 2)
        state.commit()

    updated(state)
    assert calls == [0, 1]
    assert state._last_updated_timestamp == 5


def test_disagreement_is_not_retried(make_model):
    calls = []

    @hvd.elastic.run
    def disagree(state: TorchState) -> None:
        calls.append(1)
        hvd.allreduce(torch.ones(1 + hvd.rank()), name="disagree")

    if hvd.size() == 1:
        disagree(make_state(make_model))
    else:
        with pytest.raises(MismatchError, match="shapes must match"):
            disagree(make_state(make_model))
    assert len(calls) == 1
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def test_one_epoch_over_a_failure_sees_every_sample(make_model):
    sampler = ElasticSampler(range(len(DATA)), seed=5)
    state = make_state(make_model, sampler=sampler, seen=[])
    plan = Plan(backward2=error())

    @hvd.elastic.run
    def one_epoch(state: TorchState) -> None:
        loader = torch.utils.data.DataLoader(range(len(DATA)), batch_size=2, sampler=sampler)
        for batch, indices in enumerate(loader):
            take_step(state, DATA[indices], plan)
            sampler.record_batch(batch, len(indices))
            mine = hvd.allgather(indices, name="seen")
            state.seen = state.seen + mine.tolist()
            if batch == 0:
                state.commit()

    one_epoch(state)
    assert set(state.seen) == set(range(len(DATA)))
    assert len(state.seen) == -(-len(DATA) // hvd.size()) * hvd.size()


def test_many_resets_leave_nothing_behind():
    state = TorchState(nn.Linear(2, 2), step=0)
    counts = []

    def resources() -> list[int]:
        return [len(list(Path("/proc/self", kind).iterdir())) for kind in ("fd", "task")]

    @hvd.elastic.run
    def fail_often(state: TorchState) -> None:
        counts.append(resources())
        hvd.barrier()
        if len(counts) <= 20:
            hvd.allreduce_async(torch.ones(3), name="never awaited")
            raise error(f"failure {len(counts)}")

    fail_often(state)
    assert len(counts) == 21
    assert counts[-1] == counts[2]
