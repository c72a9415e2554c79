"""DistributedOptimizer with unusual parameters: missing, frozen, late, shared, oddly laid out."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

import horovod.torch as hvd


def sgd(params, **options):
    return hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), **options)


def test_missing_gradient_counts_as_zeros():
    """Each rank uses the parameter of its own number only."""
    params = [nn.Parameter(torch.zeros(3)) for _ in range(hvd.size())]
    optimizer = sgd(params)
    for _ in range(2):
        optimizer.zero_grad()
        params[hvd.rank()].sum().backward()
        optimizer.step()
    for param in params:
        torch.testing.assert_close(param.grad, torch.full((3,), 1.0 / hvd.size()))


def test_no_gradient_at_all():
    param = nn.Parameter(torch.ones(3))
    optimizer = sgd([param])
    optimizer.step()
    assert torch.equal(param, torch.ones(3))


def test_toggled_requires_grad(assert_same_everywhere):
    """The alternation of generator and discriminator steps."""
    one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizers = [
        sgd([one], named_parameters=[("one", one)]),
        sgd([two], named_parameters=[("two", two)]),
    ]
    scale = float(hvd.rank() + 1)
    for step in range(4):
        two.requires_grad_(step % 2 == 0)
        one.requires_grad_(step % 2 == 1)
        active = optimizers[1 - step % 2]
        active.zero_grad()
        (one * two * scale).sum().backward()
        active.step()
        assert_same_everywhere([one, two])


def test_parameter_unfrozen_later_is_reduced():
    frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    param = nn.Parameter(torch.zeros(2))
    optimizer = sgd([param, frozen])
    mean = (hvd.size() + 1) / 2
    for step in range(3):
        frozen.requires_grad_(step > 0)
        optimizer.zero_grad()
        ((param + frozen).sum() * (hvd.rank() + 1)).backward()
        optimizer.step()
    torch.testing.assert_close(param.data, torch.full((2,), -3 * mean))
    torch.testing.assert_close(frozen.data, torch.full((2,), -2 * mean))


def test_group_added_later_is_reduced():
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    optimizer = sgd([first])
    optimizer.add_param_group({"params": [second], "lr": 0.5})
    ((first + second).sum() * (hvd.rank() + 1)).backward()
    optimizer.step()
    mean = (hvd.size() + 1) / 2
    torch.testing.assert_close(first.data, torch.full((2,), -mean))
    torch.testing.assert_close(second.data, torch.full((2,), -mean / 2))
    assert optimizer._parameter_names[second] == "allreduce.noname.1.0"


def test_parameter_used_twice_is_reduced_once():
    param = nn.Parameter(torch.ones(2))
    optimizer = sgd([param])
    ((param * 2).sum() + (param * 3).sum()).backward()
    optimizer.step()
    torch.testing.assert_close(param.grad, torch.full((2,), 5.0))


def test_retained_graph_and_inner_gradients():
    """A gradient penalty: torch.autograd.grad leaves p.grad and the counting alone."""
    param = nn.Parameter(torch.full((2,), 2.0))
    optimizer = sgd([param])
    loss = param.pow(3).sum() * (hvd.rank() + 1)
    (inner,) = torch.autograd.grad(loss, [param], create_graph=True)
    inner.sum().backward(retain_graph=True)
    optimizer.synchronize()
    torch.testing.assert_close(param.grad, torch.full((2,), 12.0 * (hvd.size() + 1) / 2))


def test_gradients_in_one_flat_buffer():
    params = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2))]
    flat = torch.zeros(7)
    params[0].grad, params[1].grad = flat[:3], flat[3:].view(2, 2)
    optimizer = sgd(params)
    (sum(param.sum() for param in params) * (hvd.rank() + 1)).backward()
    optimizer.step()
    torch.testing.assert_close(flat, torch.full((7,), (hvd.size() + 1) / 2))


def test_memory_order_may_differ_between_ranks(assert_same_everywhere):
    """Even ranks keep the convolution channels_last and a transposed matrix."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(5)
    weight = torch.randn(4, 3, 2, 2, generator=generator)
    matrix = torch.randn(3, 5, generator=generator)
    if hvd.rank() % 2 == 0:
        weight = weight.contiguous(memory_format=torch.channels_last)
        matrix = matrix.t().contiguous().t()
    params = [nn.Parameter(weight), nn.Parameter(matrix)]
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        optimizer = sgd(params, compression=compression)
        optimizer.zero_grad()
        (sum((param * param.detach()).sum() for param in params) * (hvd.rank() + 1)).backward()
        optimizer.synchronize()
        for param in params:
            expected = param.detach() * (hvd.size() + 1) / 2
            torch.testing.assert_close(param.grad, expected, rtol=2e-3, atol=2e-3)
        assert_same_everywhere([param.grad.contiguous() for param in params])
        del optimizer


def test_empty_and_scalar_parameters():
    params = [nn.Parameter(torch.zeros(0)), nn.Parameter(torch.tensor(1.0))]
    optimizer = sgd(params)
    (sum(param.sum() for param in params) * (hvd.rank() + 1)).backward()
    optimizer.step()
    torch.testing.assert_close(params[1].grad, torch.tensor((hvd.size() + 1) / 2))


def test_several_dtypes(assert_same_everywhere):
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    params = [nn.Parameter(torch.ones(9, dtype=dtype)) for dtype in dtypes]
    optimizer = sgd(params)
    (sum(param.sum().double() for param in params) * (hvd.rank() + 1)).backward()
    optimizer.synchronize()
    for param in params:
        expected = torch.full((9,), (hvd.size() + 1) / 2, dtype=param.dtype)
        torch.testing.assert_close(param.grad, expected)
    assert_same_everywhere([param.grad for param in params])


@pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="torch cannot choose the dtype")
@pytest.mark.parametrize("begins_with_zeros", [False, True])
def test_gradients_of_another_dtype_than_the_parameter(begins_with_zeros):
    params = [nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)) for _ in range(hvd.size())]
    for param in params:
        param.grad_dtype = torch.float32
    optimizer = sgd(params)
    if begins_with_zeros:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    params[hvd.rank()].sum().backward()
    optimizer.synchronize()
    for param in params:
        torch.testing.assert_close(param.grad, torch.full((3,), 1 / hvd.size()))


def test_hooks_do_not_keep_model_or_optimizer():
    gc.collect()
    gc.disable()
    try:
        model = nn.Linear(2, 2)
        optimizer = sgd(model.parameters())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        model_ref, optimizer_ref = weakref.ref(model), weakref.ref(optimizer)
        weight = model.weight
        del optimizer
        assert optimizer_ref() is None
        assert not weight._post_accumulate_grad_hooks
        del model
        assert model_ref() is None
    finally:
        gc.enable()
