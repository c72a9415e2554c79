"""TorchState in a world of one: saving, restoring, handlers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import horovod.torch as hvd
from horovod.torch.elastic import ElasticSampler, TorchState, handlers
from horovod.torch.elastic.state import (
    ModelStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture
def registry() -> Iterator[list]:
    """The handler registry, put back afterwards."""
    before = get_handler_registry()
    yield before
    set_handler_registry(before)


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()


def copy_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(
    "make", [torch.optim.Adam, torch.optim.SGD], ids=lambda make: make.__name__
)
def test_training_repeats_exactly_after_each_restore(model, make):
    options = {"momentum": 0.9} if make is torch.optim.SGD else {}
    optimizer = make(model.parameters(), lr=0.1, **options)
    state = TorchState(model, optimizer, batch=0)
    step(model, optimizer, 1)
    state.batch = 1
    state.commit()
    step(model, optimizer, 2)
    step(model, optimizer, 3)
    expected = copy_of(model)
    for _ in range(2):  # a second time: the first must not have changed what was saved
        state.batch = 3
        state.restore()
        assert state.batch == 1
        step(model, optimizer, 2)
        step(model, optimizer, 3)
        assert_equal(model.state_dict(), expected)


def test_restore_before_any_commit_goes_back_to_construction(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    before = copy_of(model)
    state = TorchState(model=model, optimizer=optimizer)
    step(model, optimizer, 1)
    optimizer.param_groups[0]["lr"] = 7.0
    state.restore()
    assert_equal(model.state_dict(), before)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not optimizer.state


def test_restore_clears_gradients(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TorchState(model, optimizer)
    model(torch.ones(2, 3)).sum().backward()
    state.restore()
    assert all(param.grad is None for param in model.parameters())


def test_a_saved_model_keeps_its_versions(model):
    state = TorchState(model)
    saved = state._handlers["model"]._saved
    assert saved._metadata == model.state_dict()._metadata
    assert saved["0.weight"].data_ptr() != model[0].weight.data_ptr()


def test_sampler_progress_is_saved():
    sampler = ElasticSampler(range(10))
    state = TorchState(sampler=sampler)
    sampler.record_batch(0, 4)
    state.commit()
    sampler.record_batch(1, 4)
    state.restore()
    assert (sampler.processed_num, len(sampler)) == (4, 6)


def test_reset_splits_the_rest_without_a_sync():
    sampler = ElasticSampler(range(10))
    state = TorchState(sampler=sampler)
    sampler.record_batch(0, 4)
    state.on_reset()
    assert len(sampler) == 6


def test_making_and_syncing_a_state_leaves_gradients_alone(model):
    model(torch.ones(2, 3)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    TorchState(model, optimizer, batch=0).sync()
    assert all(param.grad is not None for param in model.parameters())


def test_reset_drops_gradients_and_keeps_the_rest(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state = TorchState(model, optimizer)
    step(model, optimizer, 1)
    expected = copy_of(model), optimizer.state[model[0].weight]["exp_avg"].clone()
    state.on_reset()
    assert_equal(model.state_dict(), expected[0])
    assert torch.equal(optimizer.state[model[0].weight]["exp_avg"], expected[1])
    assert all(param.grad is None for param in model.parameters())


def test_plain_values_and_absent_ones(model):
    state = TorchState(model=model, epoch=3)
    assert (state.model, state.optimizer, state.epoch) == (model, None, 3)
    state.epoch = 4
    state.sync()
    assert state.epoch == 3


def test_assigning_retargets_and_saves_at_once(model):
    state = TorchState(model=model)
    before = copy_of(model)
    other = nn.Linear(2, 2)
    state.model = other
    saved = copy_of(other)
    nn.init.zeros_(other.weight)
    nn.init.zeros_(model[0].weight)
    state.restore()
    assert state.model is other
    assert_equal(other.state_dict(), saved)
    assert not torch.equal(model[0].weight, before["0.weight"])


def test_a_model_in_the_place_of_the_optimizer_is_refused(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="changed places: found model=SGD, optimizer="):
        TorchState(optimizer, model)


def test_several_models(model):
    other = nn.Linear(2, 2)
    state = TorchState(model, discriminator=other)
    saved = copy_of(other)
    nn.init.zeros_(other.weight)
    state.restore()
    assert_equal(other.state_dict(), saved)


class Counter:
    def __init__(self) -> None:
        self.count = 0


class CounterHandler(StateHandler):
    def save(self) -> None:
        self._saved = self.value.count

    def restore(self) -> None:
        self.value.count = self._saved

    def sync(self) -> None:
        self.save()


def test_own_handlers(registry, model):
    set_handler_registry([*registry, (Counter, CounterHandler)])
    counter = Counter()
    state = TorchState(model, counter=counter)
    counter.count = 5
    state.restore()
    assert counter.count == 0
    counter.count = 6
    state.sync()
    counter.count = 7
    state.restore()
    assert state.counter is counter
    assert counter.count == 6


def test_the_first_fitting_handler_is_taken(registry, model):
    class Mine(ModelStateHandler):
        pass

    set_handler_registry([(nn.Module, Mine), *registry])
    assert type(TorchState(model)._handlers["model"]) is Mine
    set_handler_registry([])
    assert TorchState(counter=Counter())._handlers == {}


@pytest.mark.parametrize("method", ["save", "restore", "sync"])
def test_base_handler_says_what_is_missing(method):
    class Half(StateHandler):
        def __init__(self) -> None:
            pass

    with pytest.raises(NotImplementedError, match=rf"Half must define {method}\(\)"):
        getattr(Half(), method)()


@pytest.mark.parametrize(
    "make", [torch.optim.Adam, torch.optim.SGD], ids=lambda make: make.__name__
)
def test_another_process_goes_on_from_a_file(model, make, tmp_path):
    options = {"momentum": 0.9} if make is torch.optim.SGD else {}
    optimizer = make(model.parameters(), lr=0.1, **options)
    sampler = ElasticSampler(range(10))
    state = TorchState(model, optimizer, sampler=sampler, batch=0, best=torch.tensor(2.5))
    step(model, optimizer, 1)
    sampler.record_batch(0, 4)
    state.batch = 1
    state.commit()
    state.save(tmp_path / "state")
    step(model, optimizer, 2)
    expected = copy_of(model)

    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    loaded = TorchState(
        other,
        make(other.parameters(), lr=7.0, **options),
        sampler=ElasticSampler(range(10)),
        batch=0,
        best=None,
    )
    loaded.load(tmp_path / "state")
    assert (loaded.batch, loaded.best, len(loaded.sampler)) == (1, 2.5, 6)
    step(other, loaded.optimizer, 2)
    assert_equal(other.state_dict(), expected)


@pytest.mark.parametrize(
    "tensor",
    [
        *(torch.arange(6).reshape(2, 3).to(dtype) for dtype in (torch.bfloat16, torch.int8)),
        torch.arange(6.0).to(torch.float8_e4m3fn),
        torch.randn(4, 4).t(),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.zeros(0, 3),
        torch.tensor(True),
        torch.randn(2000, requires_grad=True),
        nn.Parameter(torch.randn(2)),
        torch.eye(3).to_sparse(),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_tensors_of_every_kind_come_back(tensor, tmp_path):
    TorchState(value=tensor).save(tmp_path / "state")
    state = TorchState(value=None)
    state.load(tmp_path / "state")
    found = state.value
    assert (type(found), found.dtype, found.layout) == (type(tensor), tensor.dtype, tensor.layout)
    assert found.requires_grad == tensor.requires_grad
    assert torch.equal(found.to_dense().to(torch.complex64), tensor.to_dense().to(torch.complex64))


def test_reading_a_tensor_runs_nothing(tmp_path):
    class Evil(torch.Tensor):
        def __reduce_ex__(self, protocol):
            return os.mkdir, (str(tmp_path / "ran"),)

    TorchState(value=torch.zeros(2).as_subclass(Evil)).save(tmp_path / "state")
    with pytest.raises(ValueError, match="mkdir"):
        TorchState(value=None).load(tmp_path / "state")
    assert not (tmp_path / "ran").exists()


def test_a_file_of_another_model_changes_nothing(model, tmp_path):
    TorchState(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), batch=5).save(tmp_path / "state")
    state = TorchState(model, batch=1)
    before = copy_of(model)
    with pytest.raises(ValueError, match=r"(?s)does not fit this state: .*2\.weight"):
        state.load(tmp_path / "state")
    assert_equal(model.state_dict(), before)
    state.restore()
    assert_equal(model.state_dict(), before)
    assert state.batch == 1


def test_own_handlers_need_more_for_a_file(registry, tmp_path):
    class Written(CounterHandler):
        def saved_value(self):
            return np.array(self._saved)

        def take_value(self, saved):
            self._saved = int(saved)

    set_handler_registry([*registry, (Counter, CounterHandler)])
    with pytest.raises(NotImplementedError, match=r"CounterHandler must define saved_value\(\)"):
        TorchState(counter=Counter()).save(tmp_path / "state")
    set_handler_registry([*registry, (Counter, Written)])
    state = TorchState(counter=Counter())
    state.counter.count = 4
    state.commit()
    state.save(tmp_path / "state")
    state = TorchState(counter=Counter())
    state.load(tmp_path / "state")
    assert state.counter.count == 4


def lost(*_: object, **__: object) -> None:
    raise hvd.HorovodInternalError("rank 1 died")


def overwritten(params: dict[str, Tensor], root_rank: int) -> None:
    """As if rank 0 had sent other parameters."""
    for tensor in params.values():
        tensor.zero_()


@pytest.mark.parametrize(
    "failing", ["broadcast_parameters", "broadcast_optimizer_state", "broadcast_object", "objects"]
)
def test_a_sync_that_fails_leaves_what_was_saved(model, monkeypatch, failing):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state = TorchState(model, optimizer, sampler=ElasticSampler(range(10)), batch=1)
    step(model, optimizer, 1)
    state.sampler.record_batch(0, 4)
    state.commit()
    saved = state.saved_values()
    expected = copy_of(model)
    monkeypatch.setattr(handlers, "broadcast_parameters", overwritten)
    if failing == "objects":
        monkeypatch.setattr(state, "_bcast_object", lost)
    else:
        monkeypatch.setattr(handlers, failing, lost)
    optimizer.param_groups[0]["lr"] = 7.0
    state.sampler.record_batch(1, 4)
    state.batch = 2
    with pytest.raises(hvd.HorovodInternalError, match="rank 1 died"):
        state.sync()
    found = state.saved_values()
    assert all(found["handlers"][name] is saved["handlers"][name] for name in found["handlers"])
    state.restore()
    assert_equal(model.state_dict(), expected)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert (state.sampler.processed_num, state.batch) == (4, 1)
