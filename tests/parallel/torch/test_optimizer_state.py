"""broadcast_optimizer_state: every torch optimizer ends up with the root's state everywhere."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import horovod.torch as hvd

OPTIMIZERS = [
    ("Adadelta", {}),
    ("Adafactor", {}),
    ("Adagrad", {"initial_accumulator_value": 0.1}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "capturable": False, "weight_decay": 0.1}),
    ("AdamW", {"weight_decay": 0.1}),
    ("Adamax", {}),
    ("ASGD", {}),
    ("Muon", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("RMSprop", {"centered": True, "momentum": 0.9}),
    ("Rprop", {}),
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
]
IDS = [f"{name}-{index}" for index, (name, _) in enumerate(OPTIMIZERS)]


def make_params(shapes=((4, 3), (5,), ())) -> list[nn.Parameter]:
    generator = torch.Generator(torch.get_default_device()).manual_seed(3)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def train(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: int) -> None:
    """Steps that differ between ranks, without communication."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(50 + hvd.rank())
    for _ in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator)
        optimizer.step()
    for param in params:
        param.grad = None


def assert_equal_state(left: dict, right: dict) -> None:
    assert left["param_groups"] == right["param_groups"]
    assert left["state"].keys() == right["state"].keys()
    for index, entries in left["state"].items():
        assert entries.keys() == right["state"][index].keys()
        for key, value in entries.items():
            other = right["state"][index][key]
            if isinstance(value, Tensor):
                assert value.dtype == other.dtype
                assert torch.equal(value, other)
            else:
                assert value == other


def assert_state_of_root(optimizer: torch.optim.Optimizer, root: int) -> None:
    mine = optimizer.state_dict()
    assert_equal_state(mine, hvd.broadcast_object(copy.deepcopy(mine), root, "state"))


def test_no_optimizer_is_forgotten():
    known = {name for name, _ in OPTIMIZERS} | {"LBFGS", "SparseAdam"}
    classes = {value for value in vars(torch.optim).values() if isinstance(value, type)}
    names = {cls.__name__ for cls in classes - {torch.optim.Optimizer}}
    assert names == {name for name in known if hasattr(torch.optim, name)}


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=IDS)
@pytest.mark.parametrize("where", ["everywhere", "root only", "nowhere", "all but root"])
def test_state_of_root(name, options, where):
    cls = getattr(torch.optim, name, None) or pytest.skip("newer torch")
    root = hvd.size() - 1
    params = make_params(((4, 3), (2, 5))) if name == "Muon" else make_params()
    optimizer = cls(params, lr=0.1 * (hvd.rank() + 1), **options)
    steps = {
        "everywhere": 1 + hvd.rank(),
        "root only": 2 * (hvd.rank() == root),
        "nowhere": 0,
        "all but root": 2 * (hvd.rank() != root),
    }
    train(optimizer, params, steps[where])
    before = [param.detach().clone() for param in params]
    hvd.broadcast_optimizer_state(optimizer, root_rank=root)
    for param, value in zip(params, before, strict=True):
        assert torch.equal(param, value)
        assert not param.grad.any()
    assert_state_of_root(optimizer, root)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * hvd.size())


def test_training_goes_on_alike(assert_same_everywhere):
    params = make_params()
    optimizer = torch.optim.Adam(params)
    train(optimizer, params, 3 * (hvd.rank() == 0))
    hvd.broadcast_parameters(params, 0)
    optimizer = hvd.DistributedOptimizer(optimizer)
    hvd.broadcast_optimizer_state(optimizer, 0)
    (sum(param.sum() for param in params) * (hvd.rank() + 1)).backward()
    optimizer.step()
    assert_same_everywhere(params)
    assert optimizer.state[params[0]]["step"] == 4


def test_fitting_tensors_stay_the_same_objects():
    params = make_params()
    optimizer = torch.optim.SGD(params, lr=torch.tensor(0.1 + hvd.rank()), momentum=0.9)
    train(optimizer, params, 1)
    buffer, rate = optimizer.state[params[0]]["momentum_buffer"], optimizer.param_groups[0]["lr"]
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.state[params[0]]["momentum_buffer"] is buffer
    assert optimizer.param_groups[0]["lr"] is rate
    torch.testing.assert_close(rate, torch.tensor(0.1))


def test_other_dtypes_shapes_and_odd_entries():
    """State as a script's own optimizer may keep it: other shapes, None, lists, shared entries."""
    params = make_params()
    optimizer = torch.optim.SGD(params, lr=0.1)
    if hvd.rank() == 0:
        optimizer.state[params[0]].update(
            factors=torch.arange(6, dtype=torch.float64).view(2, 3).t(),
            half=torch.ones(4, 3, dtype=torch.bfloat16),
            nothing=None,
            history=[torch.ones(2), "text"],
        )
        optimizer.state["shared"] = {"count": 3}
    else:
        optimizer.state[params[0]].update(factors=torch.zeros(7), other=1)
        optimizer.state[params[1]]["half"] = torch.zeros(1)
    hvd.broadcast_optimizer_state(optimizer, 0)
    state = optimizer.state[params[0]]
    assert set(state) == {"factors", "half", "nothing", "history"}
    assert torch.equal(state["factors"], torch.arange(6, dtype=torch.float64).view(2, 3).t())
    assert torch.equal(state["half"], torch.ones(4, 3, dtype=torch.bfloat16))
    assert state["nothing"] is None
    assert torch.equal(state["history"][0], torch.ones(2))
    assert optimizer.state["shared"] == {"count": 3}
    assert params[1] not in optimizer.state


def test_sparse_adam():
    embedding = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(list(embedding.parameters()))
    if hvd.rank() == 0:
        embedding(torch.tensor([1, 3])).sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0, model=embedding)
    assert_state_of_root(optimizer, 0)


def test_lbfgs():
    """Its state holds lists of tensors, and belongs to the first parameter only."""
    params = make_params()
    optimizer = torch.optim.LBFGS(params, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = sum((param - 2).pow(4).sum() for param in params)
        loss.backward()
        return loss

    if hvd.rank() == 0:
        for _ in range(3):
            optimizer.step(closure)
    hvd.broadcast_parameters(params, 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    state = optimizer.state[params[0]]
    assert state["n_iter"] > 1
    own = {key: state[key] for key in ("old_dirs", "old_stps", "ro", "d", "prev_flat_grad")}
    theirs = hvd.broadcast_object(copy.deepcopy(own), 0, "state")
    for key in ("old_dirs", "old_stps", "ro"):
        assert len(own[key]) == len(theirs[key]) > 0
        assert all(map(torch.equal, own[key], theirs[key]))
    for key in ("d", "prev_flat_grad"):
        assert torch.equal(own[key], theirs[key])
    optimizer.step(closure)
    sums = hvd.allgather_object([param.sum().item() for param in params], "sums")
    assert all(found == sums[0] for found in sums)


def test_a_root_outside_of_the_world():
    optimizer = torch.optim.SGD(make_params(), lr=0.1)
    with pytest.raises(ValueError, match="invalid root rank"):
        hvd.broadcast_optimizer_state(optimizer, hvd.size())


def test_other_parameters_are_told_everywhere():
    if hvd.size() == 1:
        pytest.skip("needs ranks that disagree")
    last = hvd.rank() == hvd.size() - 1
    shaped = torch.optim.SGD([nn.Parameter(torch.zeros(3 if last else 2))], lr=0.1)
    with pytest.raises(ValueError, match=rf"rank {hvd.size() - 1} has shape \[3\]"):
        hvd.broadcast_optimizer_state(shaped, 0)
    params = [nn.Parameter(torch.zeros(2)) for _ in range(2 if last else 1)]
    with pytest.raises(ValueError, match=rf"rank {hvd.size() - 1} has parameter groups"):
        hvd.broadcast_optimizer_state(torch.optim.SGD(params, lr=0.1), 0)


def test_gradients_that_programs_read_afterwards():
    trained, own, frozen = make_params(((2, 3), (4,), (5,)))
    frozen.requires_grad_(False)
    own.grad = torch.ones(4)
    hvd.broadcast_optimizer_state(torch.optim.SGD([trained, own, frozen], lr=0.1), 0)
    assert torch.equal(trained.grad, torch.zeros(2, 3))
    assert not trained.grad.requires_grad
    assert torch.equal(own.grad, torch.ones(4))
    assert frozen.grad is None


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.SparseAdam])
def test_gradients_of_sparse_embeddings_stay_sparse(kind):
    model = nn.Embedding(6, 2, sparse=True)
    before = model.weight.detach().clone()
    optimizer = kind(model.parameters(), lr=0.1)
    hvd.broadcast_optimizer_state(optimizer, 0, model=model)
    assert model.weight.grad.is_sparse
    model(torch.tensor([1, 1])).sum().backward()
    assert model.weight.grad.coalesce().indices().tolist() == [[1]]
    optimizer.step()
    changed = (model.weight.detach() != before).any(1)
    assert changed.tolist() == [False, True, False, False, False, False]
