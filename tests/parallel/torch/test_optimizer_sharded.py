"""DistributedOptimizer(sharded=True): the same bits as without, and a share of the state."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import horovod.torch as hvd
from horovod.errors import HorovodInternalError

OPTIMIZERS = [
    (torch.optim.ASGD, {"lr": 0.1}),
    (torch.optim.Adadelta, {}),
    (torch.optim.Adagrad, {"initial_accumulator_value": 0.1}),
    (torch.optim.Adam, {}),
    (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    (torch.optim.AdamW, {"weight_decay": 0.1}),
    (torch.optim.AdamW, {"foreach": True}),
    (torch.optim.Adamax, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}),
    (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    (torch.optim.Rprop, {}),
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
]
IDS = [f"{cls.__name__}-{index}" for index, (cls, _) in enumerate(OPTIMIZERS)]


class Model(nn.Module):
    """Large and small parameters, one of them with fewer elements than there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(7)
            self.first = nn.Linear(131, 257)
            self.second = nn.Linear(257, 3)
            self.scale = nn.Parameter(torch.tensor(1.5))
            self.conv = nn.Conv1d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x)) * self.scale
        return self.conv(self.second(hidden).unsqueeze(-1)).squeeze(-1)


def loss_of(model: nn.Module, step: int) -> Tensor:
    generator = torch.Generator(torch.get_default_device()).manual_seed(100 * step + hvd.rank())
    return model(torch.randn(5, 131, generator=generator)).square().mean()


def pair(cls: type, options: dict, **arguments: object) -> list:
    """A model and its optimizer, ordinary and sharded."""
    made = []
    for sharded in (False, True):
        model = Model()
        optimizer = hvd.DistributedOptimizer(
            cls(model.parameters(), **options),
            named_parameters=[(f"{sharded}.{n}", p) for n, p in model.named_parameters()],
            sharded=sharded,
            **arguments,
        )
        made.append((model, optimizer))
    return made


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def assert_equal_parameters(one: nn.Module, other: nn.Module) -> None:
    for (name, left), right in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(left, right), f"{name}: {(left - right).abs().max()}"


def assert_equal_state(left: dict, right: dict) -> None:
    assert left["param_groups"] == right["param_groups"]
    assert left["state"].keys() == right["state"].keys()
    for index, entries in left["state"].items():
        assert entries.keys() == right["state"][index].keys()
        for key, value in entries.items():
            other = right["state"][index][key]
            assert torch.equal(value, other) if isinstance(value, Tensor) else value == other


@pytest.mark.parametrize(("cls", "options"), OPTIMIZERS, ids=IDS)
def test_the_bits_are_those_of_the_whole_step(cls: type, options: dict) -> None:
    (plain, plain_optimizer), (model, optimizer) = pair(cls, options)
    train(plain, plain_optimizer, range(4))
    train(model, optimizer, range(4))
    assert_equal_parameters(plain, model)
    state = optimizer.state_dict()
    if hvd.rank() == 0 or hvd.size() == 1:
        assert_equal_state(plain_optimizer.state_dict(), state)
    else:
        assert state["state"] == {}


@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.SGD])
def test_fused_kernels_are_equal_to_rounding(cls: type) -> None:
    """They round the last elements of a tensor differently, and shares end elsewhere."""
    made = pair(cls, {"lr": 0.1, "fused": True})
    for model, optimizer in made:
        train(model, optimizer, range(4))
    for left, right in zip(made[0][0].parameters(), made[1][0].parameters(), strict=True):
        torch.testing.assert_close(left, right)


def test_each_rank_keeps_its_part_of_the_state() -> None:
    _, (model, optimizer) = pair(torch.optim.Adam, {})
    train(model, optimizer, range(1))
    if hvd.size() == 1:
        return
    count = sum(p.numel() for p in model.parameters())
    kept = optimizer._share._inner.state.values()
    own = sum(entries["exp_avg"].numel() for entries in kept)
    assert abs(own - count / hvd.size()) <= 2
    assert not optimizer.state


def test_a_whole_state_goes_into_either_kind() -> None:
    (plain, plain_optimizer), (model, optimizer) = pair(torch.optim.Adam, {})
    train(plain, plain_optimizer, range(2))
    train(model, optimizer, range(2))
    saved = hvd.broadcast_object(optimizer.state_dict(), 0, "saved")
    (new_plain, new_plain_optimizer), (new, new_optimizer) = pair(torch.optim.Adam, {"lr": 0.5})
    new.load_state_dict(plain.state_dict())
    new_plain.load_state_dict(plain.state_dict())
    new_optimizer.load_state_dict(copy.deepcopy(saved))
    new_plain_optimizer.load_state_dict(copy.deepcopy(saved))
    train(plain, plain_optimizer, range(2, 4))
    train(new, new_optimizer, range(2, 4))
    train(new_plain, new_plain_optimizer, range(2, 4))
    assert_equal_parameters(plain, new)
    assert_equal_parameters(plain, new_plain)


def test_one_checkpoint_on_the_root_is_enough() -> None:
    (plain, plain_optimizer), (model, optimizer) = pair(torch.optim.AdamW, {})
    train(plain, plain_optimizer, range(2))
    if hvd.rank() == 0:
        model.load_state_dict(plain.state_dict())
        optimizer.load_state_dict(copy.deepcopy(plain_optimizer.state_dict()))
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    train(plain, plain_optimizer, range(2, 4))
    train(model, optimizer, range(2, 4))
    assert_equal_parameters(plain, model)


def test_a_state_dict_without_the_state_is_not_loaded() -> None:
    """It would be lost, of all ranks but the first."""
    (plain, plain_optimizer), (model, optimizer) = pair(torch.optim.Adam, {})
    train(plain, plain_optimizer, range(2))
    train(model, optimizer, range(2))
    state = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, range(2, 3))
    if hvd.rank() == 0:
        optimizer.load_state_dict(state)
    else:
        for one in (optimizer, plain_optimizer):
            with pytest.raises(ValueError, match=r"the dict of another rank, without state"):
                one.load_state_dict(state)
    hvd.broadcast_optimizer_state(optimizer, 0)
    model.load_state_dict(plain.state_dict())
    train(plain, plain_optimizer, range(2, 4))
    train(model, optimizer, range(2, 4))
    assert_equal_parameters(plain, model)


def test_every_rank_loads_its_dict_where_there_is_no_state() -> None:
    _, (model, optimizer) = pair(torch.optim.SGD, {"lr": 0.1})
    train(model, optimizer, range(1))
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer, range(1, 2))


@pytest.mark.parametrize("is_new", [False, True])
def test_ranks_that_have_stepped_take_over_what_the_root_loads(is_new: bool) -> None:
    (plain, plain_optimizer), (model, optimizer) = pair(torch.optim.Adam, {})
    saved = copy.deepcopy(plain_optimizer.state_dict())
    train(plain, plain_optimizer, range(2))
    train(model, optimizer, range(2))
    if not is_new:
        saved = copy.deepcopy(plain_optimizer.state_dict())
        saved["state"][2]["step"] += 3
    plain_optimizer.load_state_dict(copy.deepcopy(saved))
    if hvd.rank() == 0:
        optimizer.load_state_dict(copy.deepcopy(saved))
    hvd.broadcast_optimizer_state(optimizer, 0)
    train(plain, plain_optimizer, range(2, 4))
    train(model, optimizer, range(2, 4))
    assert_equal_parameters(plain, model)


def test_a_broadcast_between_steps_keeps_the_shares() -> None:
    (plain, plain_optimizer), (model, optimizer) = pair(torch.optim.Adam, {})
    train(plain, plain_optimizer, range(2))
    train(model, optimizer, range(2))
    hvd.broadcast_optimizer_state(optimizer, 0)
    train(plain, plain_optimizer, range(2, 4))
    train(model, optimizer, range(2, 4))
    assert_equal_parameters(plain, model)


def test_parameters_with_different_step_counts() -> None:
    (plain, plain_optimizer), (model, optimizer) = pair(torch.optim.Adam, {})
    for one, its in ((plain, plain_optimizer), (model, optimizer)):
        one.scale.requires_grad_(False)
        train(one, its, range(2))
    saved = copy.deepcopy(plain_optimizer.state_dict())
    saved["state"][2]["step"] += 3
    saved["state"][4]["step"] += 5
    plain_optimizer.load_state_dict(copy.deepcopy(saved))
    optimizer.load_state_dict(copy.deepcopy(saved))
    train(plain, plain_optimizer, range(2, 4))
    train(model, optimizer, range(2, 4))
    assert_equal_parameters(plain, model)


def test_a_parameter_that_becomes_trainable() -> None:
    made = pair(torch.optim.Adam, {})
    for model, optimizer in made:
        model.scale.requires_grad_(False)
        train(model, optimizer, range(2))
        model.scale.requires_grad_(True)
        train(model, optimizer, range(2, 5))
    assert_equal_parameters(made[0][0], made[1][0])


def test_clipping_and_scheduling() -> None:
    made = pair(torch.optim.SGD, {"lr": 0.5, "momentum": 0.9})
    norms = []
    for model, optimizer in made:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.synchronize()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.01))
            with optimizer.skip_synchronize():
                optimizer.step()
            scheduler.step()
    assert norms[:3] == norms[3:]
    assert_equal_parameters(made[0][0], made[1][0])


def test_accumulation_and_predivide() -> None:
    options = {"backward_passes_per_step": 2, "gradient_predivide_factor": 2.0}
    made = pair(torch.optim.Adam, {}, **options)
    for model, optimizer in made:
        for step in range(3):
            optimizer.zero_grad()
            for part in range(2):
                loss_of(model, 2 * step + part).backward()
            optimizer.step()
    assert_equal_parameters(made[0][0], made[1][0])


@pytest.mark.parametrize("options", [{"op": hvd.Sum}, {"groups": 2}])
def test_other_options(options: dict) -> None:
    made = pair(torch.optim.Adam, {}, **options)
    for model, optimizer in made:
        train(model, optimizer, range(3))
    assert_equal_parameters(made[0][0], made[1][0])


def test_compression() -> None:
    made = pair(torch.optim.Adam, {}, compression=hvd.Compression.bf16)
    for model, optimizer in made:
        train(model, optimizer, range(3))
    assert_equal_parameters(made[0][0], made[1][0])


def test_a_closure() -> None:
    made = pair(torch.optim.Adam, {})
    for model, optimizer in made:

        def closure(model=model, optimizer=optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, 0)
            loss.backward()
            return loss

        for _ in range(2):
            assert optimizer.step(closure) > 0
    assert_equal_parameters(made[0][0], made[1][0])


def test_groups_hooks_and_moved_parameters() -> None:
    made = pair(torch.optim.Adam, {})
    seen: list[int] = []
    for model, optimizer in made:
        optimizer.register_step_post_hook(lambda o, *_: seen.append(id(o)))
        extra = nn.Parameter(torch.ones(3))
        model.extra = extra
        optimizer.add_param_group({"params": [extra], "lr": 0.1})
        for step in range(3):
            optimizer.zero_grad()
            (loss_of(model, step) + (extra * hvd.rank()).sum()).backward()
            optimizer.step()
            for param in model.parameters():
                param.data = param.data.clone()
    assert seen == [id(optimizer) for _, optimizer in made for _ in range(3)]
    assert_equal_parameters(made[0][0], made[1][0])


def test_other_memory_orders() -> None:
    models = []
    for sharded in (False, True):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Conv2d(32, 64, 3), nn.Flatten(), nn.LazyLinear(4))
        model(torch.ones(1, 32, 8, 8))
        model = model.to(memory_format=torch.channels_last)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters()),
            [(f"order.{sharded}.{n}", p) for n, p in model.named_parameters()],
            sharded=sharded,
        )
        for step in range(3):
            torch.manual_seed(10 * step + hvd.rank())
            optimizer.zero_grad()
            model(torch.randn(2, 32, 8, 8)).square().mean().backward()
            optimizer.step()
        models.append(model)
    assert_equal_parameters(*models)


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler(fused: bool) -> None:
    made = pair(torch.optim.SGD, {"lr": 0.1, "fused": fused})
    for model, optimizer in made:
        scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=4.0)
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, step) * (float("inf") if (step, hvd.rank()) == (1, 0) else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert_equal_parameters(made[0][0], made[1][0])


@pytest.mark.skipif("hvd.size() == 1")
def test_a_process_set() -> None:
    members = hvd.add_process_set(range(1, hvd.size()))
    made = pair(torch.optim.Adam, {}, process_set=members)
    for model, optimizer in made:
        train(model, optimizer, range(3))
        if members.included():
            optimizer.state_dict()
    assert_equal_parameters(made[0][0], made[1][0])
    hvd.remove_process_set(members)


def test_an_elastic_state() -> None:
    (plain, plain_optimizer), (model, optimizer) = pair(torch.optim.Adam, {})
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer)
    train(plain, plain_optimizer, range(2))
    train(model, optimizer, range(2))
    state.commit()
    train(model, optimizer, range(7, 9))
    state.restore()
    state.reset()
    state.sync()
    train(plain, plain_optimizer, range(2, 4))
    train(model, optimizer, range(2, 4))
    assert_equal_parameters(plain, model)


@pytest.mark.parametrize("is_explicit", [False, True])
@pytest.mark.parametrize("rows", [10, 9000])
def test_gradients_that_become_sparse(rows: int, is_explicit: bool) -> None:
    tables = []
    for sharded in (False, True):
        torch.manual_seed(1)
        table = nn.Embedding(rows, 4)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=0.1),
            [(f"late.{rows}.{is_explicit}.{sharded}", table.weight)],
            sharded=sharded,
        )
        for step, is_sparse in enumerate((False, True, True)):
            table.sparse = is_sparse
            optimizer.zero_grad()
            table(torch.tensor([1 + hvd.rank(), 5 + step])).square().sum().backward()
            if is_explicit:
                optimizer.synchronize()
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
        tables.append(table)
    assert_equal_parameters(*tables)


@pytest.mark.skipif("hvd.size() == 1")
def test_a_state_of_another_model_is_refused() -> None:
    _, (model, optimizer) = pair(torch.optim.Adam, {})
    train(model, optimizer, range(1))
    saved = hvd.broadcast_object(optimizer.state_dict(), 0, "of another model")
    saved["state"][1]["exp_avg"] = torch.zeros(7, 7)
    optimizer.load_state_dict(saved)
    with pytest.raises(ValueError, match=r"has shape \[7, 7\], not the parameter's"):
        train(model, optimizer, range(1))
    optimizer._reducer.drop()


@pytest.mark.skipif("hvd.size() == 1")
def test_a_gradient_that_is_gone_is_named() -> None:
    _, (model, optimizer) = pair(torch.optim.Adam, {})
    loss_of(model, 0).backward()
    optimizer.synchronize()
    model.scale.grad = None
    with (
        pytest.raises(ValueError, match=r"'True\.scale' has no gradient"),
        optimizer.skip_synchronize(),
    ):
        optimizer.step()


@pytest.mark.skipif("hvd.size() == 1")
def test_a_rank_that_has_joined_is_noticed() -> None:
    _, (model, optimizer) = pair(torch.optim.Adam, {})
    train(model, optimizer, range(1))
    if hvd.rank() == 0:
        with pytest.raises(HorovodInternalError, match=r"or one has called join\(\)"):
            train(model, optimizer, range(1, 2))
    hvd.join()
