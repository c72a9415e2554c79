"""``DistributedOptimizer``: any torch optimizer, stepping on gradients reduced over all ranks.

The result is a new class between the user's optimizer class and ours, sharing parameter groups and
state with the wrapped instance. Gradients travel through ``GradientReducer``; a world of one has
none and steps as the original does.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from horovod.compression import Compressor
from horovod.operations import Average, Max, Min, Product, Sum
from horovod.torch.compression import Compression
from horovod.torch.gradient_reducer import GradientReducer
from horovod.world import rocm_built, size

__all__ = ["DistributedOptimizer"]


class _DistributedOptimizer(torch.optim.Optimizer):
    """What ``DistributedOptimizer`` adds to an optimizer class; never made on its own."""

    _reducer: GradientReducer | None
    _parameter_names: dict[Tensor, str]
    _is_synchronized: bool
    _should_synchronize: bool
    backward_passes_per_step: int

    def synchronize(self) -> None:
        """Wait until all gradients are reduced and in ``p.grad``.

        Parameters without a gradient on this rank are reduced as zeros. Every rank has to call
        ``synchronize`` or ``step`` equally often.

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
                optimizer uses them, so all ranks have to call it equally often.

        Returns:
            What the original ``step`` returns.
        """
        if self._should_synchronize:
            self._warn_if_synchronized()
            if closure is None:
                self.synchronize()
            else:
                closure = self._reducing(closure)
        self._is_synchronized = False
        return super().step(closure) if closure is not None else super().step()

    # Optimizer wraps ``step`` of each class to run step hooks; the original's is wrapped already.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset gradients as the original does; not between ``backward`` and ``step``."""
        if self._in_flight():
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() and before "
                "optimizer.step() or optimizer.synchronize(): gradients are still being reduced"
            )
        self._is_synchronized = False
        super().zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Add up gradients of ``passes`` backward passes, >= 1, before each reduction."""
        _check_passes(passes)
        self.backward_passes_per_step = passes
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load as the original does; reductions in flight are dropped and counting starts anew."""
        if self._reducer is not None:
            self._reducer.drop()
        self._is_synchronized = False
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters as the original does; they are reduced as well. Same on every rank."""
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        params = self.param_groups[index]["params"]
        for position, param in enumerate(params):
            self._parameter_names.setdefault(param, _default_name(index, position))
        if self._reducer is not None:
            self._reducer.add(params, _operation_names(params, self._parameter_names))

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "a DistributedOptimizer cannot be copied or pickled: its hooks belong to the "
            "parameters of this process; use its state_dict()"
        )

    def _in_flight(self) -> bool:
        return self._reducer is not None and self._reducer.in_flight

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        if self._in_flight():
            self.synchronize()

        def closure_with_reduced_gradients() -> Any:
            self._is_synchronized = False
            loss = closure()
            if not self._is_synchronized:
                self.synchronize()
            self._is_synchronized = False
            return loss

        return closure_with_reduced_gradients

    def _warn_if_synchronized(self) -> None:
        if self._is_synchronized and not self._in_flight():
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(): the gradients are reduced a second time",
                UserWarning,
                stacklevel=3,
            )


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
) -> torch.optim.Optimizer:
    """Wrap an optimizer so that it steps on the gradients of all ranks.

    Gradients are reduced while backward runs where cores are to spare, else at its end; ``step``
    waits for them. Every rank has to wrap the same parameters in the same order with equal options,
    and start from equal values (``broadcast_parameters``, ``broadcast_optimizer_state``).

    Args:
        optimizer: any torch optimizer; its parameter groups and state are shared, not copied. Use
            the result instead of it from now on.
        named_parameters: pairs of name and parameter that cover all parameters of the optimizer,
            usually ``model.named_parameters()``; names must be unique. Without it they are called
            ``allreduce.noname.<group>.<index>``.
        compression: what travels, for example ``Compression.fp16``.
        backward_passes_per_step: gradients of so many backward passes are added up (not averaged)
            before each reduction.
        op: ``Average``, ``Sum``, ``Min``, ``Max`` or ``Product``.
        gradient_predivide_factor: splits the averaging: gradients are divided by it before the sum
            and multiplied by ``factor / size`` after it; only with ``Average``.

    Returns:
        An optimizer of a subclass of ``optimizer``'s class with the same class name.

    Raises:
        ValueError: an argument is unusable, names are missing or duplicate, or ``init`` was not
            called.
    """
    _check_optimizer(optimizer)
    _check_passes(backward_passes_per_step)
    _check_op(op, gradient_predivide_factor)
    names = _parameter_names(optimizer, named_parameters)
    result = _subclass_instance(optimizer)
    result._parameter_names = names
    result._is_synchronized = False
    result._should_synchronize = True
    result.backward_passes_per_step = backward_passes_per_step
    result._reducer = None
    if size() > 1:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        factor = gradient_predivide_factor
        reducer = GradientReducer(compression, backward_passes_per_step, op, 1.0 / factor, factor)
        reducer.add(params, _operation_names(params, names))
        result._reducer = reducer
    return result


def _subclass_instance(optimizer: torch.optim.Optimizer) -> _DistributedOptimizer:
    """An object of a new class that shares all that ``optimizer`` has; no constructor runs."""
    original = type(optimizer)
    namespace = {"__module__": original.__module__, "__doc__": original.__doc__}
    bases = (_DistributedOptimizer, original)
    subclass: type[_DistributedOptimizer] = type(original.__name__, bases, namespace)
    result = subclass.__new__(subclass)
    result.__dict__.update(optimizer.__dict__)
    # A scheduler made before wrapping has put its own ``step`` on the instance, which would bypass
    # ours, and expects calls there; it goes on adjusting the shared parameter groups.
    if result.__dict__.pop("step", None) is not None:
        optimizer._opt_called = True  # type: ignore[attr-defined]
    return result


def _check_optimizer(optimizer: object) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"DistributedOptimizer: optimizer must be a torch.optim.Optimizer, found {optimizer!r}"
        )
    if isinstance(optimizer, _DistributedOptimizer):
        raise ValueError("DistributedOptimizer: this optimizer is distributed already")


def _check_passes(passes: int) -> None:
    if passes <= 0:
        raise ValueError(f"backward_passes_per_step must be at least 1, found {passes}")


def _check_op(op: int, gradient_predivide_factor: float) -> None:
    if op not in (Average, Sum, Min, Max, Product):
        raise ValueError(f"DistributedOptimizer: unknown op {op!r}")
    if gradient_predivide_factor == 1.0:
        return
    if gradient_predivide_factor <= 0:
        raise ValueError(
            f"gradient_predivide_factor must be positive, found {gradient_predivide_factor}"
        )
    if op != Average:
        raise ValueError("gradient_predivide_factor other than 1 needs op=Average")
    if rocm_built():
        raise ValueError("gradient_predivide_factor other than 1 is not supported on ROCm")


def _default_name(group: int, position: int) -> str:
    return f"allreduce.noname.{group}.{position}"


def _operation_names(params: list[Tensor], names: dict[Tensor, str]) -> list[str]:
    return [f"allreduce.{names[param]}" for param in params]


def _parameter_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None
) -> dict[Tensor, str]:
    pairs = list(named_parameters) if named_parameters is not None else []
    if not pairs:
        return {
            param: _default_name(group, position)
            for group, entry in enumerate(optimizer.param_groups)
            for position, param in enumerate(entry["params"])
        }
    _check_pairs(pairs)
    names = {param: name for name, param in pairs}
    unnamed = [
        f"group {group} index {position} of shape {list(param.shape)}"
        for group, entry in enumerate(optimizer.param_groups)
        for position, param in enumerate(entry["params"])
        if param not in names
    ]
    if unnamed:
        raise ValueError(
            "named_parameters must name every parameter of the optimizer; it lacks: "
            + ", ".join(unnamed)
        )
    return names


def _check_pairs(pairs: list[Any]) -> None:
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ValueError(
                "named_parameters must give (name, parameter) tuples, as model.named_parameters() "
                f"does; found {type(pair).__name__}"
            )
    duplicates = sorted(name for name, count in Counter(n for n, _ in pairs).items() if count > 1)
    if duplicates:
        raise ValueError(
            "names in named_parameters must be unique; duplicates: " + ", ".join(duplicates)
        )
