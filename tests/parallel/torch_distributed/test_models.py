"""Training on the backend, against the same training on Gloo: the losses are equal."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)


class Model(nn.Module):
    """Layers of which one is used in every second step only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 16)
        self.last = nn.Linear(16, 1)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, batch: torch.Tensor, with_second: bool = True) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.first(batch)))
        if with_second:
            hidden = torch.relu(self.second(hidden))
        return self.last(hidden)


def losses(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4, **uses: Any
) -> list[float]:
    """Of each step on this rank's batches, then a sum of all parameters."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(dist.get_rank())
    found = []
    for step in range(steps):
        batch = torch.randn(4, 8, generator=generator)
        optimizer.zero_grad()
        skip = bool(uses.get("skips")) and step % 2 == 1
        loss = model(batch, not skip).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    found.append(sum(p.detach().double().sum().item() for p in model.parameters()))
    return found


def compare(train: Callable[[dist.ProcessGroup], list[float]], *groups: dist.ProcessGroup) -> None:
    """Gloo sums in another order."""
    ours, theirs = (train(group) for group in groups)
    assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.0005},
    ],
    ids=str,
)
def test_ddp(group: dist.ProcessGroup, gloo: dist.ProcessGroup, options: dict[str, Any]):
    def train(on: dist.ProcessGroup) -> list[float]:
        model = DistributedDataParallel(Model(), process_group=on, **options)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        return losses(model, optimizer, skips="find_unused_parameters" in options)

    compare(train, group, gloo)


def test_ddp_without_synchronisation(group: dist.ProcessGroup, gloo: dist.ProcessGroup):
    def train(on: dist.ProcessGroup) -> list[float]:
        model = DistributedDataParallel(Model(), process_group=on)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        batches = [torch.full((4, 8), float(dist.get_rank() + n)) for n in range(2)]
        with model.no_sync():
            model(batches[0]).sum().backward()
        model(batches[1]).sum().backward()
        return losses(model, optimizer)

    compare(train, group, gloo)


@pytest.mark.parametrize("name", ["allreduce_hook", "fp16_compress_hook"])
def test_ddp_hooks(group: dist.ProcessGroup, gloo: dist.ProcessGroup, name: str):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def train(on: dist.ProcessGroup) -> list[float]:
        model = DistributedDataParallel(Model(), process_group=on)
        model.register_comm_hook(on, getattr(default_hooks, name))
        return losses(model, torch.optim.SGD(model.parameters(), 0.1))

    ours, theirs = train(group), train(gloo)
    # Half precision is summed in float32 here, and by Gloo in half precision.
    assert ours == pytest.approx(theirs, rel=1e-5 if name == "allreduce_hook" else 2e-2)


def test_powersgd(group: dist.ProcessGroup, gloo: dist.ProcessGroup):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    def train(on: dist.ProcessGroup) -> list[float]:
        model = DistributedDataParallel(Model(), process_group=on)
        state = powerSGD_hook.PowerSGDState(on, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return losses(model, torch.optim.SGD(model.parameters(), 0.1))

    compare(train, group, gloo)


def test_ranks_with_fewer_batches(group: dist.ProcessGroup, gloo: dist.ProcessGroup):
    def train(on: dist.ProcessGroup) -> list[float]:
        model = DistributedDataParallel(Model(), process_group=on)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with model.join():
            found = losses(model, optimizer, steps=2 + dist.get_rank())
        return found[:2]

    compare(train, group, gloo)


def test_zero_redundancy(group: dist.ProcessGroup, gloo: dist.ProcessGroup):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def train(on: dist.ProcessGroup) -> list[float]:
        model = DistributedDataParallel(Model(), process_group=on)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, process_group=on, lr=0.1, momentum=0.9
        )
        found = losses(model, optimizer)
        optimizer.consolidate_state_dict(to=0)
        return found

    compare(train, group, gloo)


@pytest.mark.skipif(not hasattr(torch.distributed.fsdp, "fully_shard"), reason="newer torch")
@pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="this torch has no FSDP2 for CPUs"
)
def test_fsdp2_and_checkpoints(tmp_path_factory: pytest.TempPathFactory):
    """Against one process with the batches of all ranks: FSDP2 averages gradients."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def layers() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))

    sharded, whole = layers(), layers()
    mesh = init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
    fully_shard(sharded[0], mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    of_sharded = torch.optim.SGD(sharded.parameters(), 0.1)
    of_whole = torch.optim.SGD(whole.parameters(), 0.1)
    generator = torch.Generator(torch.get_default_device()).manual_seed(1)
    for _ in range(3):
        batches = torch.randn(dist.get_world_size(), 4, 8, generator=generator)
        for optimizer in (of_sharded, of_whole):
            optimizer.zero_grad()
        sharded(batches[dist.get_rank()]).square().mean().backward()
        whole(batches).square().mean().backward()
        of_sharded.step()
        of_whole.step()
    for shard, tensor in zip(sharded.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(shard.full_tensor(), tensor)
    folder = [str(tmp_path_factory.mktemp("checkpoint"))]
    dist.broadcast_object_list(folder, src=0)
    checkpoint.save({"model": get_model_state_dict(sharded)}, checkpoint_id=folder[0])
    saved = copy.deepcopy({k: v.full_tensor() for k, v in sharded.state_dict().items()})
    with torch.no_grad():
        for shard in sharded.parameters():
            shard.zero_()
    state = {"model": get_model_state_dict(sharded)}
    checkpoint.load(state, checkpoint_id=folder[0])
    for name, tensor in sharded.state_dict().items():
        torch.testing.assert_close(tensor.full_tensor(), saved[name])


def test_tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(9)
            self.norm = nn.LayerNorm(6)
            self.up = nn.Linear(6, 12 * dist.get_world_size())
            self.down = nn.Linear(12 * dist.get_world_size(), 6)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return self.down(torch.relu(self.up(batch)))

    whole, parallel = Block(), Block()
    mesh = init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
    plan = {"norm": SequenceParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(parallel, mesh, plan)
    batch = torch.randn(4, 6, generator=torch.Generator(torch.get_default_device()).manual_seed(2))
    expected, found = whole(batch), parallel(batch)
    torch.testing.assert_close(found, expected)
    expected.sum().backward()
    found.sum().backward()
    torch.testing.assert_close(parallel.up.weight.grad.full_tensor(), whole.up.weight.grad)


def test_functional_collectives():
    from torch.distributed import _functional_collectives as functional

    size, rank = dist.get_world_size(), dist.get_rank()
    group = list(range(size))
    assert functional.all_reduce(torch.ones(2), "sum", group).tolist() == [size] * 2
    gathered = functional.all_gather_tensor(torch.full((1,), float(rank)), 0, group)
    assert gathered.tolist() == [float(r) for r in group]
    scattered = functional.reduce_scatter_tensor(torch.ones(size), "sum", 0, group)
    assert scattered.tolist() == [size]
    own = torch.arange(size) + 10 * rank
    exchanged = functional.all_to_all_single(own, None, None, group)
    assert exchanged.tolist() == [10 * r + rank for r in group]


# The compiler's front end alone: its back end would call a C++ compiler.
COMPILED: Any = {"backend": "aot_eager", "fullgraph": True}


def test_compiled_collectives():
    from torch.distributed import _functional_collectives as functional

    size = dist.get_world_size()

    @torch.compile(**COMPILED)
    def total(values: torch.Tensor) -> torch.Tensor:
        reduced = functional.all_reduce(2 * values, "sum", list(range(size)))
        dist.all_reduce(reduced)
        return functional.all_gather_tensor(reduced, 0, list(range(size))).sum()

    assert total(torch.ones(3)).item() == 3 * 2 * size**3


def test_compiled_ddp(group: dist.ProcessGroup):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)]
    plain = DistributedDataParallel(nn.Sequential(*layers), process_group=group)
    compiled = torch.compile(
        DistributedDataParallel(copy.deepcopy(plain.module), process_group=group),
        backend="aot_eager",
    )
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(3):
        inputs = torch.randn(2, 4)
        for model in (plain, compiled):
            model(inputs).sum().backward()
    for ours, theirs in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
