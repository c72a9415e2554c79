"""SyncBatchNorm equals ordinary batch norm over the joined batch of all ranks."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from horovod.torch import sync_batch_norm
from horovod.torch.sync_batch_norm import SyncBatchNorm

SHAPES = {2: (), 3: (5,), 4: (3, 4), 5: (2, 3, 2)}


def rows_of(rank):
    """Ranks have different batch sizes; rank 1 of three or more has none."""
    return 0 if rank == 1 and hvd.size() > 2 else 3 + rank


def joined(dims=4, dtype=torch.float32, mean=0.0, channels=3, seed=0):
    """The input of all ranks together, the same on every rank."""
    rows = sum(rows_of(rank) for rank in range(hvd.size()))
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    shape = (rows, channels, *SHAPES[dims])
    return (torch.randn(shape, generator=generator, dtype=torch.float64) + mean).to(dtype)


def mine(tensor):
    """This rank's rows of a joined tensor."""
    start = sum(rows_of(rank) for rank in range(hvd.rank()))
    return tensor[start : start + rows_of(hvd.rank())].clone()


def make_pair(channels=3, dtype=torch.float32, **options):
    """Our layer, and the ordinary one for the joined batch; same random parameters."""
    ours = SyncBatchNorm(channels, **options)
    plain = nn.BatchNorm1d(channels, **options)
    plain._check_input_dim = lambda _: None
    if ours.affine:
        generator = torch.Generator(torch.get_default_device()).manual_seed(5)
        for name in ("weight", "bias"):
            values = torch.randn(channels, generator=generator)
            getattr(ours, name).data.copy_(values)
            getattr(plain, name).data.copy_(values)
    return ours.to(dtype), plain.to(dtype)


def run(layer, x, slopes):
    """Output and input gradient; the slopes make every element count differently."""
    x = x.requires_grad_()
    y = layer(x)
    (y * slopes).sum().backward()
    return y.detach(), x.grad


def assert_buffers_close(ours, plain, **tolerance):
    pairs = zip(ours.buffers(), plain.buffers(), strict=True)
    for buffer, want in pairs:
        torch.testing.assert_close(buffer, want, **tolerance)


def compare(ours, plain, x, **tolerance):
    slopes = torch.randn(
        x.shape, generator=torch.Generator(torch.get_default_device()).manual_seed(9)
    ).to(x.dtype)
    y, grad = run(ours, mine(x), mine(slopes))
    want_y, want_grad = run(plain, x.clone(), slopes)
    assert y.dtype == grad.dtype == x.dtype
    torch.testing.assert_close(y, mine(want_y), **tolerance)
    torch.testing.assert_close(grad, mine(want_grad), **tolerance)
    assert_buffers_close(ours, plain, **tolerance)


@pytest.mark.parametrize("dims", SHAPES)
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"momentum": None}, {"eps": 0.1}])
def test_equals_the_joined_batch(dims, options):
    ours, plain = make_pair(**options)
    for step in range(3):
        compare(ours, plain, joined(dims, seed=step))


def test_float64_to_the_last_digits():
    compare(*make_pair(dtype=torch.float64), joined(dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("parameters", ["half", "float32"])
def test_half_precision(dtype, bound, parameters):
    ours, plain = make_pair(dtype=dtype if parameters == "half" else torch.float32)
    compare(ours, plain, joined(dtype=dtype), rtol=bound, atol=bound)


@pytest.mark.parametrize("mean", [1e3, -1e4])
def test_large_means(mean):
    """A sum of squares in float32 would have no digit of the variance left."""
    ours, plain = make_pair()
    x = joined(mean=mean)
    compare(ours, plain, x, rtol=2e-3, atol=2e-3)
    variance = x.double().var((0, 2, 3))
    ours.reset_running_stats()
    ours.momentum = 1.0
    ours(mine(x))
    rtol = 5e-4 if x.is_cuda else 2e-4  # torch's kernel for GPUs updates the mean in float32
    torch.testing.assert_close(ours.running_var.double(), variance, rtol=rtol, atol=0)


def test_ranks_far_apart():
    """Almost all of the variance is between the ranks' means."""
    ours, plain = make_pair(momentum=1.0)
    x = joined()
    rows = torch.cat([torch.full((rows_of(r),), 1e4 * r) for r in range(hvd.size())])
    compare(ours, plain, x + rows.view(-1, 1, 1, 1), rtol=1e-3, atol=1e-3)


def test_parameter_gradients_stay_local():
    """Summed over ranks they are those of the joined batch."""
    ours, plain = make_pair()
    x = joined()
    compare(ours, plain, x)
    for name in ("weight", "bias"):
        grad, want = getattr(ours, name).grad, getattr(plain, name).grad
        torch.testing.assert_close(hvd.allreduce(grad, op=hvd.Sum), want)
        if hvd.size() > 1:
            assert not torch.allclose(grad, want)


def test_statistics_are_bitwise_equal(assert_same_everywhere):
    ours, _ = make_pair()
    ours(mine(joined()))
    assert_same_everywhere(list(ours.buffers()))


def test_channels_last():
    ours, plain = make_pair()
    x = joined().to(memory_format=torch.channels_last)
    compare(ours, plain, x)
    y = ours(mine(x).contiguous(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_used_twice_in_one_pass():
    ours, plain = make_pair()
    x = joined()
    slopes = torch.randn(
        x.shape, generator=torch.Generator(torch.get_default_device()).manual_seed(9)
    )
    got = run(lambda x: ours(torch.sin(ours(x))), mine(x), mine(slopes))
    want = run(lambda x: plain(torch.sin(plain(x))), x, slopes)
    torch.testing.assert_close(got, tuple(mine(tensor) for tensor in want), rtol=1e-5, atol=1e-5)
    assert_buffers_close(ours, plain)


def compare_calls(ours, plain):
    x = joined(seed=3)
    torch.testing.assert_close(ours(mine(x)), mine(plain(x)))


def test_without_gradients():
    ours, plain = make_pair()
    with torch.no_grad():
        compare_calls(ours, plain)
    assert ours.num_batches_tracked == 1
    compare_calls(ours.requires_grad_(False), plain.requires_grad_(False))


def test_evaluation_is_local():
    """With running statistics nobody else has to take part."""
    ours, plain = make_pair()
    compare(ours, plain, joined())
    ours.eval()
    plain.eval()
    if hvd.rank() == 0:
        torch.testing.assert_close(ours(joined()), plain(joined()))
    assert ours.num_batches_tracked == 1


def test_evaluation_without_running_statistics():
    ours, plain = make_pair(track_running_stats=False)
    compare_calls(ours.eval(), plain.eval())


def test_copies_and_state():
    ours, plain = make_pair()
    compare(ours, plain, joined())
    twin = copy.deepcopy(ours)
    compare_calls(twin, plain)
    compare_calls(ours, copy.deepcopy(plain))
    fresh = nn.BatchNorm2d(3)
    fresh.load_state_dict(twin.state_dict())
    other = SyncBatchNorm(3)
    other.load_state_dict(fresh.state_dict())
    compare_calls(other, fresh.train() if hvd.size() == 1 else plain)


def test_layers_on_one_rank_only_do_not_confuse_names():
    if hvd.rank() == 0:
        [SyncBatchNorm(3).eval()(torch.ones(2, 3)) for _ in range(3)]
    ours, plain = make_pair()
    compare_calls(ours, plain)


def test_autocast():
    ours, plain = make_pair()
    linear = nn.Linear(3, 3, bias=False)
    nn.init.eye_(linear.weight)
    x = joined(2)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        y = ours(linear(mine(x)))
        want = plain(linear(x))
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, mine(want), rtol=3e-2, atol=3e-2)
    y.float().pow(2).sum().backward()
    assert ours.weight.grad.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # read by the compiler
def test_compiled_model():
    ours, plain = make_pair()
    compiled = torch.compile(nn.Sequential(nn.Tanh(), ours, nn.Tanh()), backend="eager")
    compare(compiled, nn.Sequential(nn.Tanh(), plain, nn.Tanh()), joined())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # read by the compiler
def test_backward_in_a_compiled_function():
    ours, plain = make_pair()
    x = joined()

    @torch.compile(backend="eager")
    def learn(model, rows):
        result = model(rows * 2)
        result.pow(3).sum().backward()
        return result.detach()

    torch.testing.assert_close(learn(ours, mine(x)), mine(learn(plain, x)))
    grads = [hvd.allreduce(own.grad, op=hvd.Sum) for own in (ours.weight, ours.bias)]
    torch.testing.assert_close(grads, [plain.weight.grad, plain.bias.grad])


def test_conversion():
    """A converted model trains as the original does on the joined batch."""

    def make():
        torch.manual_seed(3)
        tail = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        return nn.Sequential(nn.BatchNorm2d(3), tail, nn.InstanceNorm2d(4)).double()

    plain, ours = make(), make()
    weight = ours[0].weight
    ours = SyncBatchNorm.convert_sync_batchnorm(ours)
    assert [type(ours[0]), type(ours[1][1])] == [SyncBatchNorm, SyncBatchNorm]
    assert isinstance(ours[2], nn.InstanceNorm2d)
    assert ours[0].weight is weight
    assert ours.state_dict().keys() == plain.state_dict().keys()
    assert SyncBatchNorm.convert_sync_batchnorm(ours[0]) is ours[0]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (ours, plain)]
    slopes = torch.randn(*joined().shape[:1], 4, 1, 2, dtype=torch.float64)
    slopes = hvd.broadcast(slopes, 0)
    runs = (ours, plain), optimizers, (mine, lambda tensor: tensor)
    for seed in range(3):
        x = joined(dtype=torch.float64, seed=seed)
        for model, optimizer, local in zip(*runs, strict=True):
            optimizer.zero_grad()
            (model(local(x)) * local(slopes)).sum().backward()
            if model is ours:
                for parameter in model.parameters():
                    parameter.grad = hvd.allreduce(parameter.grad, op=hvd.Sum)
            optimizer.step()
    for got, want in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_conversion_of_a_layer_that_is_used_twice():
    layer = nn.BatchNorm1d(3)
    converted = SyncBatchNorm.convert_sync_batchnorm(
        nn.Sequential(layer, nn.ReLU(), layer, nn.ModuleDict({"again": layer}))
    )
    assert isinstance(converted[0], SyncBatchNorm)
    assert converted[2] is converted[0]
    assert converted[3]["again"] is converted[0]


def test_one_value_per_channel_is_refused_everywhere():
    x = torch.ones(1 if hvd.rank() == 0 else 0, 3)
    with pytest.raises(ValueError, match="more than 1 value"):
        SyncBatchNorm(3)(x)
    compare_calls(*make_pair())


@pytest.mark.parametrize("train", [True, False])
def test_wrong_inputs(train):
    layer = SyncBatchNorm(3).train(train)
    with pytest.raises(ValueError, match="at least 2 dimensions, found 1"):
        layer(torch.ones(3))
    with pytest.raises(ValueError, match="expected 3 channels, found 4"):
        layer(torch.ones(2, 4))


def test_is_a_batch_norm_of_torch():
    assert issubclass(SyncBatchNorm, torch.nn.modules.batchnorm._BatchNorm)
    layer = SyncBatchNorm(4, 1e-3, 0.2, False, False)
    assert (layer.eps, layer.momentum, layer.weight, layer.running_mean) == (1e-3, 0.2, None, None)


@pytest.mark.parametrize("is_affine", [True, False])
def test_the_function_that_modules_of_others_apply(is_affine):
    class Theirs(nn.BatchNorm2d):
        def forward(self, x):
            running = (self.running_mean, self.running_var)
            return sync_batch_norm._SyncBatchNorm.apply(
                x, self.weight, self.bias, *running, self.eps, self.momentum
            )

    layer, plain = Theirs(3, affine=is_affine), nn.BatchNorm2d(3, affine=is_affine)
    x = joined()
    torch.testing.assert_close(layer(mine(x)), mine(plain(x)))
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(layer, name), getattr(plain, name))
