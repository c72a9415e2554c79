"""``TorchState``: models, optimizers, samplers and plain objects that training can go back to.

Each tracked value of a known type has a handler; ``set_handler_registry`` adds further types. All
communication goes through ``horovod.torch.functions``, on the caller's thread.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from horovod.core.world import rank
from horovod.elastic import ObjectState
from horovod.elastic.state import check_names
from horovod.numpy.objects import broadcast_numbers
from horovod.torch.elastic.handlers import (
    Handler,
    LocalStepsStateHandler,
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    ShardedStateHandler,
    StateHandler,
)
from horovod.torch.elastic.sampler import EpochProgress
from horovod.torch.fragment_transfer import FragmentParts
from horovod.torch.functions import broadcast_object
from horovod.torch.local_steps_optimizer import LocalStepsOptimizer
from horovod.torch.sharded_optimizer import ShardedOptimizer

__all__ = [
    "Handler",
    "HandlerRegistry",
    "LocalStepsStateHandler",
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "ShardedStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class TensorLeaf:
    """A ``Leaf``: dense tensors as their bytes, all others as torch writes them.

    Reading runs nothing that the file says.
    """

    name = "tensor"

    def encode(self, value: Any) -> tuple[tuple[Any, ...], bytes | memoryview] | None:
        """Header and bytes of a tensor; None for anything else."""
        if not isinstance(value, Tensor):
            return None
        if not _is_simple(value):
            written = io.BytesIO()
            torch.save(value, written)
            return (), written.getbuffer()
        dense = value.resolve_conj().resolve_neg().contiguous()
        data = dense.reshape(-1).view(torch.uint8).numpy().data
        return (str(value.dtype).removeprefix("torch."), tuple(value.shape)), data

    def decode(self, header: tuple[Any, ...], data: bytearray) -> Any:
        """The tensor; a dense one is in host memory."""
        if not header:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Validating sparse")  # that it may take time
                warnings.filterwarnings("ignore", "TypedStorage")  # of torch 2.1's own code
                return torch.load(io.BytesIO(data), weights_only=True)
        dtype, shape = getattr(torch, header[0]), header[1]
        if not data:
            return torch.empty(shape, dtype=dtype, device="cpu")
        return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _is_simple(tensor: Tensor) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_quantized
        and not tensor.requires_grad
    )


HandlerRegistry = list[tuple[type, Callable[[Any], Handler]]]

_registry: HandlerRegistry = [
    (torch.nn.Module, ModelStateHandler),
    (ShardedOptimizer, ShardedStateHandler),
    (LocalStepsOptimizer, LocalStepsStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (EpochProgress, SamplerStateHandler),
]


def get_handler_registry() -> HandlerRegistry:
    """Pairs of type and handler class; the first whose type fits a value handles it."""
    return _registry


def set_handler_registry(registry: HandlerRegistry) -> None:
    """Replace the pairs for every ``TorchState`` made from now on; the same on every rank."""
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """Everything a training function needs to go on, as attributes.

    A model, optimizer or ``ElasticSampler`` is saved by copying its ``state_dict``; assigning
    another one to the attribute saves that at once. All others are plain objects; see
    ``ObjectState``. Make it with equal keywords on every rank, in the same order.

    Args:
        model: attribute ``model``.
        optimizer: attribute ``optimizer``; usually a ``DistributedOptimizer``.
        kwargs: further attributes, of any kind.

    Raises:
        TypeError: ``model`` is an optimizer, or ``optimizer`` a model.
    """

    _leaves = (TensorLeaf(),)
    _root_numbers = staticmethod(broadcast_numbers)

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(model, torch.optim.Optimizer) or isinstance(optimizer, torch.nn.Module):
            found = f"model={type(model).__name__}, optimizer={type(optimizer).__name__}"
            raise TypeError(f"TorchState: model and optimizer have changed places: found {found}")
        values = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: _handler_for(value) for name, value in values.items()}
        found = {name: handler for name, handler in handlers.items() if handler is not None}
        # What has parameters of its own comes after the models that have them, too.
        order = sorted(found.items(), key=lambda item: isinstance(item[1], LocalStepsStateHandler))
        self._handlers = dict(order)
        for name in self._handlers:
            super().__setattr__(name, values.pop(name))
        super().__init__(broadcast_object, rank, **values)

    def restore(self) -> None:
        """Go back to what was saved last; gradients of tracked optimizers are cleared."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Make all ranks equal to rank 0, and save; collective, blocks until done.

        After an error ``restore`` goes back to what was saved before.
        """
        handlers = self._handlers.values()
        before = [(handler, dict(vars(handler))) for handler in handlers]
        alone = [each for each in handlers if isinstance(each, LocalStepsStateHandler)]
        own = {id(param) for handler in alone for param in handler.params()}
        for each in alone:
            each.others = self._saved_state
        is_as_saved, self._is_as_saved = self._is_as_saved, False
        try:
            for handler in handlers:
                if isinstance(handler, ModelStateHandler):
                    handler.left_out = own
                if isinstance(handler, StateHandler):
                    handler.is_as_saved = is_as_saved
                handler.sync()
            self._sync_objects(alone)
        except BaseException:
            for handler, attributes in before:
                vars(handler).update(attributes)
            raise

    def _sync_objects(self, told: Sequence[LocalStepsStateHandler]) -> None:
        """Take over rank 0's plain objects; without an exchange where handlers were told them."""
        found = next((each.root_others for each in told if each.root_others is not None), None)
        if not any(each.are_others_equal for each in told):
            if found is None:
                super().sync()
                return
            if rank() != 0:
                self._saved_state = found
        self._assign_saved()

    def _parts(self) -> FragmentParts | None:
        found = self._handlers.values()
        alone = [each for each in found if isinstance(each, LocalStepsStateHandler)]
        if not alone:
            return None
        return FragmentParts(lambda: [f for each in alone for f in each.value.fragments])

    def reset(self) -> None:
        """Adapt to the new world: samplers split what is left, optimizers drop gradients."""
        for handler in self._handlers.values():
            if isinstance(handler, StateHandler):
                handler.reset()

    def saved_values(self) -> dict[str, Any]:
        """The values saved last, in the form for a file."""
        found = {name: _as_written(handler) for name, handler in self._handlers.items()}
        return {**super().saved_values(), "handlers": found}

    def take_values(self, values: dict[str, Any]) -> None:
        """Have ``restore`` go back to these."""
        check_names(values["handlers"], self._handlers)
        super().take_values(values)
        for name, handler in self._handlers.items():
            handler.take_value(values["handlers"][name])  # type: ignore[attr-defined]

    def _keep(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super()._keep()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None:
            handler.set_value(value)


def _handler_for(value: Any) -> Handler | None:
    for handled, handler_class in _registry:
        if isinstance(value, handled):
            return handler_class(value)
    return None


def _as_written(handler: Handler) -> Any:
    if not hasattr(handler, "saved_value"):
        raise TypeError(
            f"{type(handler).__name__} must define saved_value() and take_value() so that what it "
            "handles can go to a file"
        )
    return handler.saved_value()
