"""How a ``TorchState`` saves, restores and sends values of known types: a handler for each type."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from horovod.core.process_sets import global_process_set
from horovod.core.world import rank
from horovod.elastic import is_elastic_job
from horovod.torch.functions import (
    apply_options,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    describe_options,
    digest_and_size,
)
from horovod.torch.local_steps_optimizer import OUTER_STATE

_MOST_NOTE_BYTES = 64 * 1024  # of plain objects that travel with what ranks say of themselves


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

    # Whether ``sync`` need not save what it has not changed.
    is_as_saved = False

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
        if given or not self.is_as_saved:
            extra = {name: given.pop(name) for name in list(given) if _is_extra(name)}
            broadcast_parameters(given, root_rank=0)
            if extra:
                extra = broadcast_object(extra, name="elastic.extra_state")
                whole = self.value.state_dict()
                whole.update(extra)
                self.value.load_state_dict(whole)
            self.save()


def _is_extra(name: str) -> bool:
    """Whether a ``state_dict`` has a module's ``get_extra_state`` there, which can be anything."""
    return name.rpartition(".")[-1] == "_extra_state"


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


class _Note(NamedTuple):
    """What a rank says of itself when states become equal, beside what the optimizer says.

    ``others``: a digest of what else all ranks must have; empty if it is unknown. Rank 0 adds the
    ``options`` of parameter groups, and these ``objects`` if they are small.
    """

    others: str
    options: list[dict[str, Any]] | None = None
    objects: dict[str, Any] | None = None


class LocalStepsStateHandler(OptimizerStateHandler):
    """The same where ranks step alone: parameters and inner state are those of each rank.

    A rank that joins gets the agreed parameters, and begins with the inner state that it has.

    Attributes:
        others: what else all ranks must have, which travels along in ``sync`` if it is small.
        are_others_equal: whether all ranks had the same at the last ``sync``.
        root_others: what rank 0 has; None where it has to be sent.
    """

    others: dict[str, Any] | None = None
    are_others_equal = False
    root_others: dict[str, Any] | None = None

    def save(self) -> None:
        found = self.value.state_dict()
        outer = _on_host(found.pop(OUTER_STATE))
        self._saved = _host_copy(found) | {OUTER_STATE: outer}
        self._own = _host_copy(self.params())
        if is_elastic_job():
            self.value.digests()  # here, since all ranks wait in ``sync``

    def restore(self) -> None:
        # Nothing changes the outer tensors. Copies of the rest: optimizers keep what they load.
        outer = {key: value for key, value in self._saved.items() if key == OUTER_STATE}
        inner = {key: value for key, value in self._saved.items() if key not in outer}
        self.value.take_state_dict(_host_copy(inner) | outer)
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
        standings = optimizer.standings(global_process_set, self._note())
        root = standings[0]
        known = {each.note.others for each in standings}
        self.are_others_equal = len(known) == 1 and "" not in known
        self.root_others = root.note.objects
        if root.step == 0:
            named = [(f"elastic.own.{i}", param) for i, param in enumerate(self.params())]
            broadcast_parameters(named, root_rank=0)
            super().sync()
            return
        own = standings[rank()]
        is_equal = bool(root.options) and own[:4] == root[:4]
        if len({each.options for each in standings}) > 1 or not root.options:
            apply_options(optimizer, root.note.options)
        optimizer.take_over(0, standings, global_process_set)
        if own.step != root.step:
            optimizer.restart_from_agreed()
        if not (is_equal and self.is_as_saved):
            self.save()

    def _note(self) -> _Note:
        digest, size_bytes = digest_and_size(self.others)
        if rank() != 0:
            return _Note(digest)
        is_small = digest and size_bytes <= _MOST_NOTE_BYTES
        return _Note(digest, describe_options(self.value), self.others if is_small else None)

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


def _on_host(outer: dict[str, Any]) -> dict[str, Any]:
    """An outer state with its tensors in host memory, not copied if they are there already.

    Fragments never change their tensors, but take new ones.
    """

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: moved(each) for key, each in value.items()}
        if isinstance(value, list):
            return [moved(each) for each in value]
        return value.cpu() if isinstance(value, Tensor) else value

    return {key: moved(value) for key, value in outer.items()}


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
