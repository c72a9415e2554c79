"""Error feedback: what low-bit formats leave out of a gradient is added to the next one.

Between hosts every rank codes some of the sums of a gradient; the engine tells it what is missing
in them. Over all ranks these errors are exactly what the result lacks. So each rank adds its own
to the gradient of the next step, and nothing is lost, only late.

Seide and others: 1-Bit Stochastic Gradient Descent (Interspeech 2014).
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from horovod.core.world import engine, local_size, rank, size

_ERRORS = "compression_errors"  # in a ``state_dict``


class RankErrors:
    """The errors of this rank by name of the gradient, of the gradients' shapes.

    They stay over a change of the world: no other rank has them.
    """

    def __init__(self) -> None:
        self._errors: dict[str, Tensor] = {}
        self._rank = rank()  # kept for ``state_dict`` after shutdown

    def state_dict(self) -> dict[str, Any]:
        """The errors, and the rank that they belong to; not copied."""
        return {"rank": self._rank, "errors": dict(self._errors)} if self._errors else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a copy of ``state_dict``'s result; from nothing, if it is another rank's.

        Raises:
            ValueError: it is damaged.
        """
        errors = state.get("errors") if state.get("rank") == self._rank else {}
        if not isinstance(errors, dict):
            raise ValueError(
                "load_state_dict: the errors of a compression must be a dict of tensors by name, "
                f"found {type(errors).__name__}"
            )
        for name, error in errors.items():
            _check_error(name, error)
        self._errors = {name: self._copied(error) for name, error in errors.items()}

    @staticmethod
    def _copied(error: Tensor) -> Tensor:
        return error.detach().clone(memory_format=torch.contiguous_format)


def with_errors(state: dict[str, Any], feedback: RankErrors | None) -> dict[str, Any]:
    """A ``state_dict`` of an optimizer, with the errors of its exchange if there are any."""
    errors = {} if feedback is None else feedback.state_dict()
    return {**state, _ERRORS: errors} if errors else state


def load_errors(state: dict[str, Any], feedback: RankErrors | None) -> None:
    """Go on from the errors in a ``state_dict`` of an optimizer; from nothing without them.

    Raises:
        ValueError: they are damaged.
    """
    if feedback is None:
        return
    errors = state.get(_ERRORS, {})
    if not isinstance(errors, dict):
        raise ValueError(
            f"load_state_dict: {_ERRORS!r} must be the dict that state_dict() makes, found "
            f"{reprlib.repr(errors)}; leave it out to start without errors"
        )
    feedback.load_state_dict(errors)


def has_errors(state: dict[str, Any], feedback: RankErrors | None) -> bool:
    """Whether ``load_errors`` would take errors from this ``state_dict``."""
    return feedback is not None and bool(state.get(_ERRORS))


def without_errors(state: dict[str, Any]) -> dict[str, Any]:
    """The ``state_dict`` of the optimizer alone."""
    return {key: value for key, value in state.items() if key != _ERRORS}


def _check_error(name: str, error: Any) -> None:
    found = f"a {type(error).__name__}"
    if isinstance(error, Tensor):
        if error.layout is torch.strided and error.dtype.is_floating_point and not error.is_meta:
            return
        found = f"one of {error.dtype}, {error.layout}, on {error.device}"
    raise ValueError(
        f"load_state_dict: the error of {name!r} must be a dense tensor of a floating dtype, found "
        f"{found}"
    )


class ErrorFeedback(RankErrors):
    """Those of low-bit formats, by full name of the allreduce; float32 in host memory."""

    @torch.no_grad()
    def add_to(self, names: Sequence[str], gradients: Sequence[Tensor]) -> list[Tensor | None]:
        """Add what the last step has left out; the tensors for what this one leaves out.

        Gradients that no low-bit format carries are left as they are. On one host there are no
        errors.
        """
        self._rank = rank()
        if local_size() == size() and not self._errors:
            return []
        errors = [self._errors_of(*pair) for pair in zip(names, gradients, strict=True)]
        for gradient, error in zip(gradients, errors, strict=True):
            if error is not None:
                gradient.add_(error)
        return errors

    @staticmethod
    def _copied(error: Tensor) -> Tensor:
        return _errors_of_shape(error.shape).copy_(error)

    def _errors_of(self, name: str, gradient: Tensor) -> Tensor | None:
        if gradient.device.type != "cpu" or not gradient.dtype.is_floating_point:
            return None  # what the engine refuses by name
        error = self._errors.get(name)
        if error is None or error.shape != gradient.shape:  # those were another model's
            if engine().is_exact(name, gradient.numel()):
                return None
            error = self._errors[name] = _errors_of_shape(gradient.shape)
        return error


def forget(errors: Sequence[Tensor | None]) -> None:
    """Make errors zero that a failed reduction may have changed.

    Its gradients have the errors of the step before, so these would count twice.
    """
    for error in errors:
        if error is not None:
            error.zero_()


def _errors_of_shape(shape: torch.Size) -> Tensor:
    """Zeros as the engine writes them: contiguous float32 in host memory."""
    return torch.zeros(shape, dtype=torch.float32, device="cpu")
