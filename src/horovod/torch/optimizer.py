"""``DistributedOptimizer``: any torch optimizer, stepping on gradients reduced over all ranks.

The result is an instance of a new class, derived from the user's optimizer class and ours. It
shares parameter groups and state with the wrapped instance. ``GradientReducer`` reduces the
gradients. A world that stays one rank, and a rank outside of the process set, have no reducer and
step as the original does.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from horovod.core.compression import check_compressor
from horovod.core.operations import Adasum, Average, Max, Min, Product, Sum, check_predivide
from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set
from horovod.core.world import size
from horovod.elastic import is_elastic_job
from horovod.torch import adapter
from horovod.torch.adasum_optimizer import _AdasumOptimizer as _DistributedAdasumOptimizer
from horovod.torch.adasum_optimizer import make_adasum_optimizer
from horovod.torch.compression import Compression
from horovod.torch.gradient_exchange import Compression as AnyCompression
from horovod.torch.gradient_exchange import ExchangeCompressor
from horovod.torch.gradient_reducer import GradientReducer
from horovod.torch.parameter_groups import check_groups, choose_groups
from horovod.torch.parameter_names import choose_names, operation_names
from horovod.torch.wrapped_optimizer import WrappedOptimizer, check_passes, wrap

__all__ = ["DistributedOptimizer", "_DistributedAdasumOptimizer"]


class _DistributedOptimizer(WrappedOptimizer):
    """What ``DistributedOptimizer`` adds to an optimizer class; never made on its own."""

    _reducer: GradientReducer | None
    _loss_operation: tuple[int, ProcessSet]
    _is_synchronized: bool
    _is_synchronized_for_scaler: bool
    _should_synchronize: bool

    def synchronize(self) -> None:
        """Wait until all gradients are reduced and in ``p.grad``.

        Parameters without a gradient on this rank are reduced as zeros. Every rank has to call
        ``synchronize`` or ``step`` equally often, of several optimizers in the same order.

        Raises:
            HorovodInternalError: a reduction failed.
        """
        if self._reducer is not None:
            self._reducer.synchronize()
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, ``step`` uses the gradients as they are: call ``synchronize`` before."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronize, unless inside ``skip_synchronize``, and make the original step.

        Args:
            closure: recomputes the loss; the gradients of every call are reduced before the
                optimizer uses them, so all ranks have to call it equally often. LBFGS decides by
                the loss, so it gets that of all ranks.

        Returns:
            What the original ``step`` returns.
        """
        is_reduced = self._is_synchronized_for_scaler and not self._is_pending()
        if self._should_synchronize and not is_reduced:
            self._warn_if_synchronized()
            if closure is None:
                self.synchronize()
            else:
                closure = self._reducing(closure)
        self._forget_synchronized()
        return super().step(closure) if closure is not None else super().step()

    # Optimizer wraps ``step`` of each class to run step hooks; the original's is wrapped already.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset gradients as the original does; not between ``backward`` and ``step``."""
        if self._is_pending():
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() and before "
                "optimizer.step() or optimizer.synchronize(): gradients are still being reduced"
            )
        self._forget_synchronized()
        super().zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Add up gradients of ``passes`` backward passes, >= 1, before each reduction."""
        super().set_backward_passes_per_step(passes)
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load as the original does; pending reductions are dropped and counting starts anew."""
        if self._reducer is not None:
            self._reducer.drop()
        self._forget_synchronized()
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters as the original does; they are reduced as well. Same on every rank."""
        super().add_param_group(param_group)
        params = self.param_groups[-1]["params"]
        if self._reducer is not None:
            self._reducer.add(params, operation_names(params, self._parameter_names))

    @property
    def _handles(self) -> Mapping[Tensor, Any]:
        delays = self._allreduce_delay.items() if self._is_pending() else ()
        return MappingProxyType({param: (None, None) for param, delay in delays if delay == 0})

    @property
    def _allreduce_delay(self) -> Mapping[Tensor, int]:
        return MappingProxyType({} if self._reducer is None else self._reducer.passes_left())

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # GradScaler.step reads this before it unscales the gradients and looks for infinite ones.
        # That is the last moment to reduce them: later they would change while pending, and ranks
        # would come to different decisions.
        if _is_read_by_grad_scaler() and self._should_synchronize and not self._is_synchronized:
            self.synchronize()
            self._is_synchronized_for_scaler = True
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value

    def _is_pending(self) -> bool:
        return self._reducer is not None and self._reducer.is_pending

    def _forget_synchronized(self) -> None:
        self._is_synchronized = self._is_synchronized_for_scaler = False

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        if self._is_pending():
            self.synchronize()

        def closure_with_reduced_gradients() -> Any:
            self._is_synchronized = False
            loss = closure()
            if not self._is_synchronized:
                self.synchronize()
            self._is_synchronized = False
            return self._loss_of_all(loss) if isinstance(self, torch.optim.LBFGS) else loss

        return closure_with_reduced_gradients

    def _loss_of_all(self, loss: Any) -> Any:
        """The loss whose gradient the reduced gradients are, equal on all ranks."""
        if self._reducer is None:
            return loss
        op, process_set = self._loss_operation
        mine = torch.as_tensor(loss, dtype=torch.float64).detach().clone()
        name = f"{next(iter(self._parameter_names.values()))}.loss"
        return adapter.allreduce(mine, name=name, op=op, process_set=process_set)

    def _warn_if_synchronized(self) -> None:
        if self._is_synchronized and not self._is_pending():
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(): the gradients are reduced a second time",
                UserWarning,
                stacklevel=3,
            )


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

    Returns:
        An optimizer of a subclass of ``optimizer``'s class with the same class name. Blocks until
        all ranks of the set are here if ``groups`` is a number, but not in an elastic job.

    Raises:
        ValueError: an argument is unusable, names are missing or duplicate, or ``init`` was not
            called.
    """
    _check_optimizer(optimizer)
    check_passes(backward_passes_per_step)
    _check_op(op, gradient_predivide_factor)
    _check_compression(compression)
    groups = check_groups(groups, num_groups)
    names = choose_names(optimizer, named_parameters)
    is_reducing = _is_reducing(process_set)
    result: WrappedOptimizer
    if op == Adasum and is_reducing:
        passes = backward_passes_per_step
        result = make_adasum_optimizer(optimizer, names, compression, passes, process_set)
    else:
        result = _wrap(optimizer, names, backward_passes_per_step)
    result.op, result.process_set, result._compression = op, process_set, compression
    result.gradient_predivide_factor = gradient_predivide_factor
    if is_reducing and isinstance(result, _DistributedOptimizer):
        result._loss_operation = (Sum if op == Sum else Average, process_set)
        result._reducer = GradientReducer(
            compression,
            backward_passes_per_step,
            op,
            1.0 / gradient_predivide_factor,
            gradient_predivide_factor,
            process_set=process_set,
            sparse_as_dense=sparse_as_dense,
            is_sparse=isinstance(optimizer, torch.optim.SparseAdam),
        )
        params = [param for group in optimizer.param_groups for param in group["params"]]
        chosen = choose_groups(groups, names, params, process_set)
        result._reducer.add(params, operation_names(params, names), chosen)
    return result


def _wrap(
    optimizer: torch.optim.Optimizer, names: dict[Tensor, str], passes: int
) -> _DistributedOptimizer:
    result = wrap(optimizer, _DistributedOptimizer)
    result._parameter_names = names
    result._forget_synchronized()
    result._should_synchronize = True
    result.backward_passes_per_step = passes
    result._reducer = None
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


def _is_read_by_grad_scaler() -> bool:
    """Whether the caller's property is read by ``GradScaler.step``, and not by other code."""
    return sys._getframe(2).f_code is _SCALER.step.__code__


# Older torch versions have one for CUDA only.
_SCALER: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler


def _check_optimizer(optimizer: object) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"DistributedOptimizer: optimizer must be a torch.optim.Optimizer, found {optimizer!r}"
        )
    if isinstance(optimizer, WrappedOptimizer):
        raise ValueError("DistributedOptimizer: this optimizer is distributed already")


def _check_compression(compression: AnyCompression) -> None:
    if not isinstance(compression, ExchangeCompressor):
        check_compressor(compression)
    elif isinstance(compression, type):
        raise ValueError(
            f"DistributedOptimizer: compression={compression.__name__} is a class; call it, for "
            "example Compression.powersgd()"
        )


def _check_op(op: int, gradient_predivide_factor: float) -> None:
    if op not in (Average, Sum, Adasum, Min, Max, Product):
        raise ValueError(f"DistributedOptimizer: unknown op {op!r}")
    check_predivide(op, gradient_predivide_factor)
