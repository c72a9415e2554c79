"""The optimizer that steps on gradients reduced over all ranks: what ``wrap`` puts before a class.

``DistributedOptimizer`` makes it. ``GradientReducer`` reduces the gradients. A world that stays one
rank, and a rank outside of the process set, have no reducer and step as the original does.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from horovod.core.process_sets import ProcessSet
from horovod.torch import adapter
from horovod.torch.error_feedback import RankErrors, load_errors, with_errors, without_errors
from horovod.torch.gradient_reducer import GradientReducer
from horovod.torch.parameters import operation_names
from horovod.torch.shares import check_has_state
from horovod.torch.wrapped_optimizer import WrappedOptimizer


class _DistributedOptimizer(WrappedOptimizer):
    """What ``DistributedOptimizer`` adds to an optimizer class; never made on its own."""

    _reducer: GradientReducer | None
    _loss_operation: tuple[int, ProcessSet]
    _is_synchronized: bool
    _is_synchronized_for_scaler: bool
    _should_synchronize: bool

    def _begin(self, names: dict[Tensor, str], passes: int) -> None:
        """In place of a constructor. ``names``: of all parameters."""
        self._parameter_names = names
        self._forget_synchronized()
        self._should_synchronize = True
        self.backward_passes_per_step = passes
        self._reducer = None

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
        """Inside, ``step`` uses the gradients as they are: call ``synchronize`` before.

        ``step``, also that of a GradScaler, is an ``AssertionError`` inside where gradients are
        still being reduced.
        """
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

        Raises:
            AssertionError: it is called inside ``skip_synchronize`` without ``synchronize`` before;
                call ``synchronize``, then go on.
        """
        if self._is_unused:
            self._note_first_step()
        is_reduced = self._is_synchronized_for_scaler and not self._is_pending()
        if not self._should_synchronize:
            self._check_reduced()
        elif not is_reduced:
            self._warn_if_synchronized()
            if closure is None:
                self._reduce()
            else:
                closure = self._reducing(closure)
        self._forget_synchronized()
        return self._step_original(closure)

    # Optimizer wraps ``step`` of each class to run step hooks; the original's is wrapped already.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset gradients as the original does; not between ``backward`` and ``step``.

        Between the passes of ``backward_passes_per_step`` counting starts anew.
        """
        if self._is_pending():
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() and before "
                "optimizer.step() or optimizer.synchronize(): gradients are still being reduced"
            )
        self._forget_synchronized()
        if self._reducer is not None:
            self._reducer.forget_passes()
        super().zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Add up gradients of ``passes`` backward passes, >= 1, before each reduction."""
        super().set_backward_passes_per_step(passes)
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def state_dict(self) -> dict[str, Any]:
        """As the original's. With ``topk``, ``int8`` and the like it has this rank's errors, too.

        They differ between ranks: a rank that loads another's starts without errors.
        """
        return with_errors(super().state_dict(), self._feedback)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load as the original does; pending reductions are dropped and counting starts anew."""
        check_has_state(state_dict)
        if self._reducer is not None:
            self._reducer.drop()
        self._forget_synchronized()
        load_errors(state_dict, self._feedback)
        super().load_state_dict(without_errors(state_dict))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters as the original does; they are reduced as well. Same on every rank."""
        super().add_param_group(param_group)
        params = self.param_groups[-1]["params"]
        if self._reducer is not None:
            self._reducer.add(params, operation_names(params, self._parameter_names))

    @property
    def _feedback(self) -> RankErrors | None:
        return None if self._reducer is None else self._reducer.feedback

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
        if _is_read_by_grad_scaler():
            if not self._should_synchronize:
                self._check_reduced()  # here, since it may leave the step out
            elif not self._is_synchronized:
                self.synchronize()
                self._is_synchronized_for_scaler = True
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value

    def _reduce(self) -> None:
        """Reduce as far as the step needs it."""
        self.synchronize()

    def _is_pending(self) -> bool:
        return self._reducer is not None and self._reducer.is_pending

    def _check_reduced(self) -> None:
        if self._is_pending():
            raise AssertionError(
                "optimizer.step() was called inside optimizer.skip_synchronize() while gradients "
                "are still being reduced; call optimizer.synchronize() before the "
                "skip_synchronize() block"
            )

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


def _is_read_by_grad_scaler() -> bool:
    """Whether the caller's property is read by ``GradScaler.step``, and not by other code."""
    return sys._getframe(2).f_code is _SCALER.step.__code__


# Older torch versions have one for CUDA only.
_SCALER: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
