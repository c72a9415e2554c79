"""``SyncBatchNorm``: batch norm whose statistics come from all ranks' rows.

Forward gathers one small row per rank (mean, sum of squared deviations, count) and combines them by
Chan, Golub and LeVeque's formula (1979), which stays exact where a difference of sums of squares
would cancel. Backward adds up two sums per channel. Both block, on the thread that calls them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.batchnorm import _BatchNorm

from horovod.core import world
from horovod.core.operations import Sum
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.torch import adapter
from horovod.torch.uncompiled import keep_uncompiled


class SyncBatchNorm(_BatchNorm):
    """Batch norm over the joined batch of all ranks; replaces ``nn.BatchNorm1d`` to ``3d``.

    While training, and in evaluation without running statistics, outputs, running statistics and
    input gradients equal those of ordinary batch norm over all ranks' rows together. Ranks may have
    different numbers of rows, also none. The gradients of ``weight`` and ``bias`` are those of this
    rank's rows: ``DistributedOptimizer`` averages them like all others. In a world of one, and in
    evaluation with running statistics, this is ordinary batch norm.

    All ranks have to run the same such layers in the same order, forward and backward, and agree
    whether a layer's input needs a gradient. ``state_dict`` is that of ``nn.BatchNorm``.

    Args:
        num_features: channels, the second dimension of the input.
        eps: added to the variance.
        momentum: weight of the new statistics in the running ones; None: their plain average.
        affine: whether there are a weight and a bias.
        track_running_stats: whether to keep running statistics.
        process_set: the ranks whose rows belong together.

    Shapes:
        input and output: ``[n, num_features, ...]``, float16, bfloat16, float32 or float64, on any
        device; statistics are kept in float32 (float64 for float64).

    Raises:
        ValueError: (forward) fewer than two dimensions, another number of channels, no or one value
            per channel over all ranks, or ``init`` was not called.
        HorovodInternalError: (forward, backward) ranks disagree, or a rank was lost.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    @classmethod
    def convert_sync_batchnorm(
        cls, module: nn.Module, process_set: ProcessSet = global_process_set
    ) -> nn.Module:
        """``module`` with every batch norm in it replaced; parameters and buffers are shared.

        Returns ``module`` itself, or the replacement if it is a batch norm.
        """
        return cls._converted(module, process_set, {})

    @classmethod
    def _converted(
        cls, module: nn.Module, process_set: ProcessSet, done: dict[nn.Module, nn.Module]
    ) -> nn.Module:
        """``done``: what has become of modules so far, for those that are used several times."""
        if module in done:
            return done[module]
        if isinstance(module, cls) or not isinstance(module, _BatchNorm):
            done[module] = module
        else:
            done[module] = cls._like(module, process_set)
        for name, child in module._modules.items():
            if child is not None:
                setattr(module, name, cls._converted(child, process_set, done))
        return done[module]

    @classmethod
    def _like(cls, module: _BatchNorm, process_set: ProcessSet) -> SyncBatchNorm:
        options = (module.eps, module.momentum, module.affine, module.track_running_stats)
        result = cls(module.num_features, *options, process_set=process_set)
        result.weight, result.bias = module.weight, module.bias
        result.running_mean, result.running_var = module.running_mean, module.running_var
        result.num_batches_tracked = module.num_batches_tracked
        result.train(module.training)
        return result

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"SyncBatchNorm: expected an input of at least 2 dimensions, found {input.dim()}"
            )
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm: expected {self.num_features} channels, found {input.shape[1]}"
            )

    def forward(self, input: Tensor) -> Tensor:
        """``input`` normalised; blocks until all ranks are here if statistics are computed."""
        self._check_input_dim(input)
        normalise = self._forward_together if self._needs_others() else super().forward
        output: Tensor = normalise(input)
        return output

    def _needs_others(self) -> bool:
        if not self.training and self.running_mean is not None and self.running_var is not None:
            return False
        size = self.process_set.size()
        if size is None:
            raise ValueError(f"SyncBatchNorm: {self.process_set} is not registered")
        return size > 1

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _forward_together(self, input: Tensor) -> Tensor:
        name = f"sync_batch_norm.{_numbering.number(self)}"
        exchange = _StatisticsExchange(name, self.process_set)
        dtype = torch.promote_types(input.dtype, torch.float32)
        total = exchange.gather(_moments(input.detach(), dtype))
        if total.size <= 1:
            raise ValueError(
                "SyncBatchNorm: expected more than 1 value per channel over all ranks, found "
                f"{total.size:.0f} (the input of this rank is {list(input.shape)})"
            )
        if self.training:
            self._track(total)
        weight = self.weight if self.affine else None
        bias = self.bias if self.affine else None
        output: Tensor = _Normalize.apply(input, weight, bias, total, self.eps, exchange)  # type: ignore[no-untyped-call]
        return output

    @torch.no_grad()
    def _track(self, total: _Moments) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        momentum = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        variance = total.squares / (total.size - 1)  # unbiased, as in nn.BatchNorm
        for running, new in ((self.running_mean, total.mean), (self.running_var, variance)):
            running.lerp_(new.to(running.dtype), momentum or 0.0)


class _SyncBatchNorm:
    """The function of the original Horovod that other modules call: batch norm for one input."""

    @staticmethod
    def apply(
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        eps: float,
        momentum: float,
    ) -> Tensor:
        """``input`` normalised by the statistics of all ranks, which also go into the running ones.

        Every rank has to call it in the same order.
        """
        layer = SyncBatchNorm(input.shape[1], eps, momentum, affine=False)
        layer.affine = weight is not None
        vars(layer).update(weight=weight, bias=bias)  # which need not be parameters
        layer.running_mean, layer.running_var = running_mean, running_var
        output: Tensor = layer._forward_together(input)
        return output


class _Moments(NamedTuple):
    """The mean of each channel of a batch; ``squares`` is the sum of squared deviations from it."""

    mean: Tensor
    squares: Tensor
    size: float  # values per channel


class _StatisticsExchange(NamedTuple):
    """How a layer's ranks exchange their statistics."""

    name: str
    process_set: ProcessSet

    def gather(self, mine: _Moments) -> _Moments:
        """The moments of all ranks' batches joined; equal on all ranks, in ``mine``'s dtype."""
        mean, squares = adapter.within_reach(mine.mean), adapter.within_reach(mine.squares)
        count = mean.new_tensor([mine.size], dtype=torch.float64)
        row = torch.cat([mean.double(), squares.double(), count])
        rows = adapter.allgather(row[None], f"{self.name}.forward", process_set=self.process_set)
        means, squares, counts = torch.split(rows, [len(mine.mean), len(mine.mean), 1], dim=1)
        total = float(counts.sum())
        mean = (means * counts).sum(0) / max(total, 1.0)
        between = (counts * (means - mean).square()).sum(0)
        joined = (squares.sum(0) + between).to(mine.mean)
        return _Moments(mean.to(mine.mean), joined, total)

    def add(self, mine: Tensor) -> Tensor:
        """The sum of all ranks' tensors."""
        name = f"{self.name}.backward"
        reachable = adapter.within_reach(mine)
        summed = adapter.allreduce(reachable, name=name, op=Sum, process_set=self.process_set)
        return summed.to(mine)


class _Normalize(torch.autograd.Function):
    """``(x - mean) / sqrt(var + eps) * weight + bias``, where x contributed to mean and var."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        total: _Moments,
        eps: float,
        exchange: _StatisticsExchange,
    ) -> Tensor:
        mean, variance = total.mean, total.squares / total.size
        scale = torch.ones_like(mean) if weight is None else weight.to(mean)
        shift = torch.zeros_like(mean) if bias is None else bias.to(mean)
        ctx.save_for_backward(x, scale, mean, variance)
        ctx.size, ctx.eps, ctx.exchange = total.size, eps, exchange
        ctx.dtypes = [None if own is None else own.dtype for own in (weight, bias)]
        return F.batch_norm(x, mean, variance, scale, shift, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, mean, variance = ctx.saved_tensors
        inverse = torch.rsqrt(variance + ctx.eps)  # of the standard deviation
        sums = _gradient_sums(grads[0], x, mean, inverse)
        grad_weight, grad_bias = (
            None if dtype is None else own.to(dtype)
            for own, dtype in zip(sums, ctx.dtypes, strict=True)
        )
        grad_x = None
        if ctx.needs_input_grad[0]:
            along_x, constant = ctx.exchange.add(sums) / ctx.size
            gain = scale * inverse
            # gain * (grad - constant - along_x * normalised x), in the statistics' dtype
            wide = x.to(mean.dtype)
            weights = (-gain * along_x, -gain * constant)
            grad_x = F.batch_norm(wide, mean, variance, *weights, training=False, eps=ctx.eps)
            gain = gain.view(1, -1, *[1] * (x.dim() - 2))
            grad_x = grad_x.addcmul_(grads[0].to(mean.dtype), gain).to(x.dtype)
        return grad_x, grad_weight, grad_bias, None, None, None


keep_uncompiled(_Normalize)


def _moments(x: Tensor, dtype: torch.dtype) -> _Moments:
    """The moments of this rank's rows alone: zeros if there are none."""
    zeros = torch.zeros(x.shape[1], dtype=dtype, device=x.device)
    if x.numel() == 0:
        return _Moments(zeros, zeros, 0.0)
    count = x.numel() // x.shape[1]
    # Several times as fast as var_mean; running statistics are given to make it work in ``dtype``.
    mean, variance = torch.batch_norm_update_stats(x, zeros, zeros.clone(), 0.0)
    return _Moments(mean, variance * count, float(count))


def _gradient_sums(grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    """Sums over this rank's values, ``[2, channels]``: of ``grad * normalised x``, of ``grad``."""
    if x.numel() == 0:  # torch's kernel divides by zero
        return torch.zeros(2, len(mean), dtype=mean.dtype, device=mean.device)
    # As in training: then the kernels of CPU and CUDA alike read the saved statistics.
    training, wanted = True, [False, True, True]
    _, along_x, constant = torch.ops.aten.native_batch_norm_backward(
        grad, x, torch.ones_like(mean), None, None, mean, inverse, training, 0.0, wanted
    )
    return torch.stack([along_x, constant])


class _Numbering:
    """The numbers of layers in the names of their operations, by world and process set.

    A layer gets its number in its first exchange. All ranks make these exchanges in the same order,
    whatever other layers each of them has built, copied or loaded.
    """

    def __init__(self) -> None:
        self._generation = -1
        self._numbers: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._used: Counter[int | None] = Counter()

    def number(self, layer: SyncBatchNorm) -> int:
        if self._generation != world.generation():
            self._generation = world.generation()
            self._numbers.clear()
            self._used.clear()
        if layer not in self._numbers:
            set_id = layer.process_set.process_set_id
            self._numbers[layer] = self._used[set_id]
            self._used[set_id] += 1
        return self._numbers[layer]


_numbering = _Numbering()
