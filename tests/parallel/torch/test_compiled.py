"""Collectives inside of functions that torch.compile compiles: each one is where it splits them."""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd

# Of the compiler itself, wherever a tensor crosses a split.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

ROWS = 12  # for 1, 2, 3 and 4 ranks equal parts


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch._dynamo.reset()


@pytest.fixture
def own():
    return torch.arange(1.0, ROWS + 1) * (hvd.rank() + 1)


def in_background(start, *args):
    return hvd.synchronize(start(*args))


CALLS = {
    "allreduce": lambda x: hvd.allreduce(x, name="compiled"),
    "compression": lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16),
    "broadcast": lambda x: hvd.broadcast(x, hvd.size() - 1),
    "allgather": lambda x: hvd.allgather(x),
    "alltoall": lambda x: hvd.alltoall(x),
    "splits": lambda x: hvd.alltoall(x, [1] * hvd.size())[0],
    "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum),
    "grouped_allreduce": lambda x: hvd.grouped_allreduce([x, x + 1])[1],
    "grouped_allgather": lambda x: hvd.grouped_allgather([x, x + 1])[1],
    "grouped_reducescatter": lambda x: hvd.grouped_reducescatter([x, x + 1])[1],
}
WITHOUT_GRADIENT = {
    "allreduce_": lambda x: hvd.allreduce_(x),
    "broadcast_": lambda x: hvd.broadcast_(x, 0),
    "grouped_allreduce_": lambda x: hvd.grouped_allreduce_([x, x + 1])[1],
    "allreduce_async": lambda x: in_background(hvd.allreduce_async, x),
    "allreduce_async_": lambda x: in_background(hvd.allreduce_async_, x),
    "allgather_async": lambda x: in_background(hvd.allgather_async, x),
    "alltoall_async": lambda x: in_background(hvd.alltoall_async, x)[0],
    "sparse": lambda x: hvd.sparse_allreduce_async(x.to_sparse(), "compiled", hvd.Sum)().to_dense(),
    "object": lambda x: x + sum(hvd.allgather_object(hvd.rank() + 1)),
}


@pytest.mark.parametrize("call", [*CALLS, *WITHOUT_GRADIENT])
def test_results(own, call):
    function = {**CALLS, **WITHOUT_GRADIENT}[call]

    def around(x):
        return function(x * 2) + 1

    compiled = torch.compile(around, backend="eager")
    for factor in (1.0, 3.0):  # compiles, then runs what was compiled
        assert torch.equal(compiled(own * factor), around(own * factor))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("call", CALLS)
def test_gradients(own, call, backend):
    def loss(x):
        return CALLS[call](x * x).pow(2).sum()

    def gradient(x):
        return torch.autograd.grad(loss(x), x)[0]

    x = own.requires_grad_()
    expected = gradient(x)
    torch.compile(loss, backend=backend)(x).backward()
    assert torch.equal(x.grad, expected)
    assert torch.equal(torch.compile(gradient, backend=backend)(x), expected)


def test_a_call_splits_the_function_and_nothing_else_is_compiled(own):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    @torch.compile(backend=backend)
    def metric(x):
        return hvd.allreduce(x.mean(), name="metric") * 2

    assert metric(own) == hvd.allreduce(own.mean()) * 2
    assert len(graphs) == 2
    metric(own)
    assert len(graphs) == 2


def test_a_whole_graph_cannot_have_a_collective(own):
    compiled = torch.compile(lambda x: hvd.allreduce(x), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(own)


def test_ranks_and_sizes_are_constants_of_a_whole_graph(own):
    @torch.compile(backend="eager", fullgraph=True)
    def share(x):
        return x * hvd.rank() / hvd.size() + hvd.global_process_set.size()

    assert torch.equal(share(own), own * hvd.rank() / hvd.size() + hvd.size())


@pytest.mark.parametrize("wait", [hvd.barrier, hvd.join])
def test_every_call_waits(wait):
    """What has no tensors is not done once and for all when the function is compiled."""

    @torch.compile(backend="eager")
    def count(x):
        wait()
        return x * 2, hvd.metrics()

    counts = [count(torch.ones(1))[1][f"{wait.__name__}_operations"] for _ in range(3)]
    assert counts[0] < counts[1] < counts[2]
