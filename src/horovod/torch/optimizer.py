"""``DistributedOptimizer``: any torch optimizer, stepping on gradients reduced over all ranks.

The result is an instance of a new class, derived from the user's optimizer class and ours. It
shares parameter groups and state with the wrapped instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from horovod.core.compression import check_compressor, check_rounds
from horovod.core.operations import (
    Adasum,
    Average,
    Sharded,
    Sum,
    check_passes,
    check_predivide,
    check_sharded,
    resolve_op,
)
from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set
from horovod.core.world import size
from horovod.elastic import is_elastic_job
from horovod.torch.compression import Compression
from horovod.torch.gradient_exchange import Compression as AnyCompression
from horovod.torch.gradient_exchange import ExchangeCompressor, exchange_of
from horovod.torch.gradient_reducer import GradientReducer
from horovod.torch.parameters import check_groups, choose_groups, choose_names, operation_names
from horovod.torch.reducing_optimizer import _DistributedOptimizer
from horovod.torch.sharded_optimizer import ShardedOptimizer, check_elementwise
from horovod.torch.shared_step import SharedStep
from horovod.torch.wrapped_optimizer import WrappedOptimizer, check_optimizer, wrap
from horovod.torch.wrapped_optimizer import _AdasumOptimizer as _DistributedAdasumOptimizer

__all__ = ["DistributedOptimizer", "_DistributedAdasumOptimizer", "_DistributedOptimizer"]


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: AnyCompression = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    sharded: Sharded = False,
) -> torch.optim.Optimizer:
    """Wrap an optimizer so that it steps on the gradients of all ranks.

    Gradients are reduced while backward runs where cores are to spare, else at its end; ``step``
    waits for them. Every rank has to wrap the same parameters in the same order with equal options,
    and start from equal values (``broadcast_parameters``, ``broadcast_optimizer_state``).

    ``torch.amp.GradScaler.step`` works as usual. Call ``synchronize`` before ``scaler.unscale_`` or
    clipping, and ``step`` inside ``skip_synchronize`` then.

    Args:
        optimizer: any torch optimizer; its parameter groups and state are shared, not copied. Use
            the result instead of it from now on.
        named_parameters: pairs of name and parameter that cover all parameters of the optimizer,
            usually ``model.named_parameters()``; names must be unique. Without it they are called
            ``allreduce.noname.<group>.<index>``; so name them where several optimizers have
            gradients under way at the same time.
        compression: what travels, for example ``Compression.fp16``. Not applied to sparse
            gradients that are gathered.
        backward_passes_per_step: gradients of so many backward passes are added up (not averaged)
            before each reduction.
        op: ``Average``, ``Sum``, ``Min``, ``Max``, ``Product``, or ``Adasum``: the original step is
            made on this rank's gradients, and what it changed is reduced; then ``synchronize``
            does nothing and groups do not matter.
        gradient_predivide_factor: splits the averaging: gradients are divided by it before the sum
            and multiplied by ``factor / size`` after it; only with ``Average``.
        num_groups: deprecated, use ``groups``.
        groups: gradients of a group are reduced as one operation, when the last of them is ready.
            A number > 0: trainable parameters are split evenly in so many groups. Lists of
            parameters: those groups; the others are reduced one by one. None or 0: no groups.
        sparse_as_dense: sparse gradients are reduced as dense ones, and the result is sparse
            again. Otherwise their rows are gathered from all ranks (with ``Average`` and ``Sum``).
        process_set: the ranks that reduce; others step on their own gradients.
        sharded: each rank of the set steps its share of all elements only, keeps the optimizer
            state of this share, and gets the other parameters from the other ranks: the same bits
            in less time and memory. With ``Average`` and ``Sum``, for optimizers that treat every
            element alike: torch's but ``Adafactor``, ``LBFGS``, ``Muon`` and ``SparseAdam``;
            ``"elementwise"`` says so of another one. After ``step`` gradients are reduced in this
            rank's share only; after ``synchronize`` they are reduced everywhere. All ranks call
            ``state_dict``: the first rank of the set gets the whole state, the others none. With
            ``join`` a step is an error: the share of a rank that has joined would be lost.

    Returns:
        An optimizer of a subclass of ``optimizer``'s class with the same class name. Blocks until
        all ranks of the set are here if ``groups`` is a number, but not in an elastic job.

    Raises:
        ValueError: an argument is unusable, names are missing or duplicate, or ``init`` was not
            called.
    """
    check_optimizer("DistributedOptimizer", optimizer)
    check_passes(backward_passes_per_step)
    op = resolve_op(None, op)
    check_predivide(op, gradient_predivide_factor)
    if isinstance(compression, ExchangeCompressor):
        check_rounds(compression, sharded)
    else:
        check_compressor(compression)
    check_sharded(sharded, op)
    check_elementwise(sharded, optimizer, compression)
    groups = check_groups(groups, num_groups)
    names = choose_names(optimizer, named_parameters)
    is_reducing = _is_reducing(process_set)
    factors = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
    result: WrappedOptimizer
    sent: Any = compression
    if op == Adasum and is_reducing:
        result = wrap(optimizer, _DistributedAdasumOptimizer)
        exchange = exchange_of(compression, (Adasum, 1.0, 1.0), process_set)
        result._begin(names, backward_passes_per_step, exchange)
    elif sharded and is_reducing:
        result = wrap(optimizer, ShardedOptimizer)
        arguments: Any = (names, (op, *factors), compression, process_set)
        result._share = sent = SharedStep(result, type(optimizer), *arguments)
    else:
        result = wrap(optimizer, _DistributedOptimizer)
    result.op, result.process_set, result._compression = op, process_set, compression
    result.gradient_predivide_factor = gradient_predivide_factor
    if isinstance(result, _DistributedOptimizer):
        result._begin(names, backward_passes_per_step)
    if is_reducing and isinstance(result, _DistributedOptimizer):
        result._loss_operation = (Sum if op == Sum else Average, process_set)
        result._reducer = GradientReducer(
            sent,
            backward_passes_per_step,
            op,
            *factors,
            process_set=process_set,
            sparse_as_dense=sparse_as_dense,
            is_sparse=isinstance(optimizer, torch.optim.SparseAdam),
        )
        params = [param for group in optimizer.param_groups for param in group["params"]]
        chosen = choose_groups(groups, names, params, process_set)
        result._reducer.add(params, operation_names(params, names), chosen)
    if is_reducing:
        result.expect_steps("DistributedOptimizer")
    return result


def _is_reducing(process_set: ProcessSet) -> bool:
    """Whether this rank has others to reduce with, or may get some."""
    if process_set is global_process_set:
        return size() > 1 or is_elastic_job()
    check_process_set(process_set)
    members = process_set.size()
    if members is None:
        raise ValueError(f"DistributedOptimizer: {process_set} is not registered; add it first")
    return members > 1 and bool(process_set.included())
