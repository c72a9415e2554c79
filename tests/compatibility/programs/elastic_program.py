"""Imports elastic training's deep paths as programs of others do, and trains with a state."""

import torch

import horovod.torch as hvd
from horovod.common.elastic import ObjectState, State, notification_manager, run_fn
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState
from horovod.torch.mpi_ops import rank, size

hvd.init()
assert issubclass(hvd.elastic.TorchState, State)
assert not issubclass(HostsUpdatedInterrupt, HorovodInternalError)
assert callable(notification_manager.init)

model = torch.nn.Linear(1, 1)
torch.nn.init.constant_(model.weight, rank() + 1.0)
sampler = ElasticSampler(list(range(8)), shuffle=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
state = TorchState(model=model, optimizer=optimizer, sampler=sampler, batch=0)


@hvd.elastic.run
def train(state):
    """Everybody begins with rank 0's weights, and each has a share of the samples."""
    seen = list(state.sampler)
    for state.batch in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        state.commit()
    return seen


seen = train(state)
assert sorted(n for own in hvd.allgather_object(seen) for n in own) == list(range(8))
assert model.weight.item() == 0.0
assert hvd.broadcast_object(model.weight.item(), 0) == model.weight.item()

counter = ObjectState(bcast_object=hvd.broadcast_object, get_rank=rank, number=rank())
counter.sync()
assert counter.number == 0
counter.number = 5
counter.restore()
assert counter.number == 0
assert run_fn(lambda state: size(), lambda: None)(counter) == size()
print("fine")
