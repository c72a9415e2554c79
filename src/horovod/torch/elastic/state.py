"""``TorchState``: models, optimizers, samplers and plain objects that training can go back to.

Each tracked value of a known type has a handler; ``set_handler_registry`` adds further types. All
communication goes through ``horovod.torch.functions``, on the caller's thread.
"""

from __future__ import annotations

import copy
import io
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any, Protocol

import torch
from torch import Tensor

from horovod.core.process_sets import global_process_set
from horovod.core.world import rank
from horovod.elastic import ObjectState
from horovod.elastic.state import check_names
from horovod.torch.elastic.sampler import EpochProgress
from horovod.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    digest_of_objects,
)
from horovod.torch.local_steps import OUTER_STATE, LocalStepsOptimizer
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


class Handler(Protocol):
    """The methods of a handler class in the registry; it is constructed with the value."""

    def save(self) -> None:
        """Keep a copy of the value's state."""

    def restore(self) -> None:
        """Put the kept state back into the value."""

    def sync(self) -> None:
        """Make the value equal to rank 0's and keep that, in place of an attribute; collective.

        If another part of the state fails later the former attributes are put back.
        """

    def set_value(self, value: Any) -> None:
        """Handle this value instead, and save it."""


class StateHandler:
    """Base of handlers: saves once when it is made; derive and give the other methods."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        """Keep a copy of the value's state in host memory."""
        raise NotImplementedError(f"{type(self).__name__} must define save()")

    def restore(self) -> None:
        """Put the kept state back into the value."""
        raise NotImplementedError(f"{type(self).__name__} must define restore()")

    def sync(self) -> None:
        """Make the value equal to rank 0's and keep that; collective."""
        raise NotImplementedError(f"{type(self).__name__} must define sync()")

    def reset(self) -> None:
        """Adapt the value to a new world, also where no ``sync`` follows; nothing by default."""

    def set_value(self, value: Any) -> None:
        """Handle this value instead, and save it."""
        self.value = value
        self.save()

    def saved_value(self) -> Any:
        """The state saved last, for a file: plain objects, arrays and tensors if possible."""
        raise NotImplementedError(f"{type(self).__name__} must define saved_value()")

    def take_value(self, saved: Any) -> None:
        """The inverse of ``saved_value``: ``restore`` goes back to this from now on."""
        raise NotImplementedError(f"{type(self).__name__} must define take_value()")


class _StateDictHandler(StateHandler):
    """For values that have ``state_dict`` and ``load_state_dict``."""

    def save(self) -> None:
        self._saved = _host_copy(self.value.state_dict())

    def restore(self) -> None:
        # A copy again: optimizers keep the tensors that they load, and change them.
        self.value.load_state_dict(_host_copy(self._saved))

    def saved_value(self) -> Any:
        return self._saved

    def take_value(self, saved: Any) -> None:
        self._saved = saved


class ModelStateHandler(_StateDictHandler):
    """Parameters and buffers of a ``torch.nn.Module``.

    Attributes:
        left_out: ``id`` of the parameters that another handler gives to all ranks.
    """

    left_out: Collection[int] = ()

    def sync(self) -> None:
        given = self.value.state_dict()
        for name, each in self.value.state_dict(keep_vars=True).items():
            if id(each) in self.left_out:
                del given[name]
        broadcast_parameters(given, root_rank=0)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """State and options of a ``torch.optim.Optimizer``."""

    def restore(self) -> None:
        super().restore()
        # Left by a step that never ended: reduced in part, and not to be added to.
        self.value.zero_grad()

    def reset(self) -> None:
        # Loading drops what the old world was reducing; a new rank would not have it either.
        self.value.load_state_dict(self.value.state_dict())
        self.value.zero_grad()

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class ShardedStateHandler(OptimizerStateHandler):
    """The same where ranks share the step: every rank keeps the whole, for any of them may go."""

    def save(self) -> None:
        self._saved = _host_copy(self.value.whole_state_dict())

    def reset(self) -> None:
        # The shares are those of the old world, and what was saved is the state as it is.
        if self.value.is_shared:
            self.restore()
        else:
            super().reset()


class LocalStepsStateHandler(OptimizerStateHandler):
    """The same where ranks step alone: parameters and inner state are those of each rank.

    A rank that joins gets the agreed parameters, and begins with the inner state that it has.

    Attributes:
        others: a digest of what else all ranks must have; empty if it is unknown.
        are_others_equal: whether all ranks had the same at the last ``sync``, in which this costs
            no further exchange.
    """

    others = ""
    are_others_equal = False

    def save(self) -> None:
        super().save()
        self._own = _host_copy(self.params())

    def restore(self) -> None:
        # Loading copies the outer state. Copies of the rest: optimizers keep what they load.
        outer = {key: value for key, value in self._saved.items() if key == OUTER_STATE}
        inner = {key: value for key, value in self._saved.items() if key not in outer}
        self.value.load_state_dict(_host_copy(inner) | outer)
        self.value.zero_grad()
        self._put_own()

    def reset(self) -> None:
        # What the old world was averaging; what was saved has it averaged already.
        self.value.drop()
        self.value.zero_grad()

    def sync(self) -> None:
        optimizer = self.value
        if 0 not in (optimizer.process_set.ranks or []):
            raise ValueError(
                f"sync: ranks take over the agreed parameters of rank 0, which is not in the "
                f"process set {optimizer.process_set.ranks} of the optimizer with local steps"
            )
        step = optimizer.local_step
        standings = optimizer.standings(global_process_set, self.others)
        root = standings[0]
        notes = {each.note for each in standings}
        self.are_others_equal = len(notes) == 1 and "" not in notes
        if root.step == 0:
            named = [(f"elastic.own.{i}", param) for i, param in enumerate(self.params())]
            broadcast_parameters(named, root_rank=0)
            super().sync()
            return
        known = {(each.outer, each.options) for each in standings}
        if len(known) > 1 or not root.options:
            self._take_over_outer()
        if step != root.step:
            optimizer.restart_from_agreed()
        self.save()

    def _take_over_outer(self) -> None:
        """Get options and outer state of rank 0; collective."""
        optimizer = self.value
        inner, optimizer.state = optimizer.state, defaultdict(dict)
        try:
            broadcast_optimizer_state(optimizer, root_rank=0)
        finally:
            optimizer.state = inner

    def saved_value(self) -> Any:
        return {"optimizer": super().saved_value(), "parameters": self._own}

    def take_value(self, saved: Any) -> None:
        super().take_value(saved["optimizer"])
        self._own = saved["parameters"]

    def params(self) -> list[Tensor]:
        """The parameters that each rank has of its own."""
        return [param for group in self.value.param_groups for param in group["params"]]

    @torch.no_grad()
    def _put_own(self) -> None:
        for param, own in zip(self.params(), self._own, strict=True):
            param.copy_(own)


class SamplerStateHandler(_StateDictHandler):
    """Progress of an ``ElasticSampler`` or a ``BalancedSampler``."""

    def sync(self) -> None:
        progress = broadcast_object(self.value.state_dict(), name="elastic.sampler")
        self.value.load_state_dict(progress)
        self.save()

    def reset(self) -> None:
        self.value.reset()


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
            each.others = digest_of_objects(self._saved_state)
        try:
            for handler in handlers:
                if isinstance(handler, ModelStateHandler):
                    handler.left_out = own
                handler.sync()
            if any(each.are_others_equal for each in alone):
                self._assign_saved()
            else:
                super().sync()
        except BaseException:
            for handler, attributes in before:
                vars(handler).update(attributes)
            raise

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


def _host_copy(value: Any) -> Any:
    """A deep copy with all tensors in host memory; dict subclasses keep type and attributes."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        copied = copy.copy(value)
        for key in copied:
            copied[key] = _host_copy(value[key])
        return copied
    if type(value) in (list, tuple):
        return type(value)(map(_host_copy, value))
    return copy.deepcopy(value)
