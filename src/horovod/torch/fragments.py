"""A part of a model that ranks with local steps agree on at a time: sent, awaited and merged.

The *outer state* of all parts, as a ``state_dict`` has it, and between ranks:

step       steps so far
agreed     the agreed parameters, by parameter; empty before the first step
momentum   of the outer optimizer, by parameter; empty if it has none
agreed_at  the step after which the rank had the agreed values, by parameter
arrived    by fragment: outer gradients that are averaged, but not merged yet
schedule   sync_every, fragments, overlap: what ``arrived`` belongs to

The *agreed* parameters are the same bits on every rank. They are kept in float32 at least, beside
the momentum of the outer optimizer. The outer gradient is what the rank's own steps took away from
them: agreed minus own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from horovod.core.handles import wait_for_all
from horovod.core.local_steps import LocalSteps, mixed
from horovod.core.process_sets import ProcessSet
from horovod.core.world import rank
from horovod.errors import HorovodInternalError, MismatchError
from horovod.torch import adapter
from horovod.torch.gradient_exchange import PendingGroup, PlainExchange
from horovod.torch.topk import TopKExchange


class Fragment:
    """Some parameters of a model, their agreed values and the outer gradient under way.

    Args:
        number: of the fragment.
        params: dense floating parameters.
        rules: of the outer step and of merging.

    Attributes:
        agreed: values by parameter; none before ``begin``.
        momentum: of the outer optimizer, by parameter; none if it has none.
        gradients: outer gradients that are under way, or there and not merged yet.
        agreed_at: the step after which this rank's parameters were the agreed ones.
    """

    def __init__(self, number: int, params: Sequence[Tensor], rules: LocalSteps) -> None:
        self.params = list(params)
        self._number = number
        self._rules = rules
        self.forget()

    @property
    def has_begun(self) -> bool:
        """Whether there are agreed parameters."""
        return bool(self.agreed)

    def forget(self) -> None:
        """Start anew: the agreed parameters are those at the next ``begin``."""
        self._pending: PendingGroup | None = None
        self.agreed: list[Tensor] = []
        self.momentum: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.agreed_at = 0

    @torch.no_grad()
    def begin(self) -> None:
        """Take the parameters as they are for the agreed ones: all, or those that are new."""
        for param in self.params[len(self.agreed) :]:
            self.agreed.append(param.detach().to(_outer_dtype(param), copy=True))
            if self._rules.outer_momentum:
                self.momentum.append(torch.zeros_like(self.agreed[-1]))

    @torch.no_grad()
    def send(self, exchange: PlainExchange | TopKExchange, step: int) -> None:
        """Begin to average the outer gradient over ranks.

        ``step``: the number of the rank's step; 0 if it finishes.
        """
        pairs = zip(self.agreed, self.params, strict=True)
        gradients = [agreed - param for agreed, param in pairs]
        marker = gradients[0].new_empty(self._rules.marker_shape(step))
        rules, number = self._rules, self._number
        tensors = [*gradients, marker]
        members = [rules.label_of(number, i, each.shape) for i, each in enumerate(tensors)]
        self._pending = exchange.start_group(rules.name_of(number), tensors, members)
        self.gradients = gradients

    def wait(self) -> None:
        """Wait for the average, if it is under way.

        Raises:
            HorovodInternalError: the reduction failed; nothing is merged.
        """
        if self._pending is None:
            return
        try:
            self._pending.finish()
        except HorovodInternalError as error:
            self._pending, self.gradients = None, []
            if isinstance(error, MismatchError):
                raise self._rules.out_of_step(error) from None
            raise
        self._pending = None

    def drop(self) -> None:
        """Give up what is under way; what the rank has changed is sent the next time."""
        if self._pending is not None:
            self._pending.drop()
            self._pending, self.gradients = None, []

    @torch.no_grad()
    def merge(self, weight: float, step: int) -> None:
        """Wait, make the outer step, and move the parameters to the agreed ones.

        Args:
            weight: how far they move; 1 is all the way.
            step: the number of the rank's step.
        """
        self.wait()
        # Parameters that came after ``send`` have no gradient yet.
        for index, gradient in enumerate(self.gradients):
            param, agreed = self.params[index], self.agreed[index]
            momentum = self.momentum[index] if self.momentum else None
            agreed, momentum = self._rules.step_outer(agreed, momentum, gradient)
            self.agreed[index] = agreed
            if momentum is not None:
                self.momentum[index] = momentum
            param.copy_(mixed(agreed, param.to(agreed.dtype), weight))
        if weight == 1 and len(self.gradients) == len(self.params):
            self.agreed_at = step
        self.gradients = []


def _outer_dtype(param: Tensor) -> torch.dtype:
    return torch.promote_types(param.dtype, torch.float32)


_LISTS = ("agreed", "momentum")


def outer_state(fragments: Sequence[Fragment], rules: LocalSteps, step: int) -> dict[str, Any]:
    """The state of fragments of which none is under way; tensors are not copied."""
    for fragment in fragments:
        if fragment.has_begun:
            fragment.begin()  # for parameters that came after the last step
    numbered = enumerate(fragments)
    return {
        "step": step,
        "agreed": [tensor for each in fragments for tensor in each.agreed],
        "momentum": [tensor for each in fragments for tensor in each.momentum],
        "agreed_at": [each.agreed_at for each in fragments for _ in each.agreed],
        "arrived": {number: list(each.gradients) for number, each in numbered if each.gradients},
        "schedule": _schedule(rules),
    }


def put_outer_state(
    state: dict[str, Any] | None,
    fragments: Sequence[Fragment],
    rules: LocalSteps,
    are_fixed: bool = False,
) -> int:
    """Have the fragments go on from a state, which is copied; the number of steps.

    Args:
        state: None: start anew.
        fragments: of all parameters.
        rules: their schedule.
        are_fixed: there are errors of a compression, which belong to the fragments of the state.

    Raises:
        ValueError: it does not fit the parameters or the arguments.
    """
    if state is not None and state["agreed"]:
        _check(state, fragments, rules, are_fixed)
    for fragment in fragments:
        fragment.forget()
    if state is None or not state["agreed"]:
        return 0 if state is None else int(state["step"])
    begin = 0
    for number, fragment in enumerate(fragments):
        part = slice(begin, begin + len(fragment.params))
        fragment.begin()
        copy_all(fragment.agreed, state["agreed"][part])
        if fragment.momentum and state["momentum"]:
            copy_all(fragment.momentum, state["momentum"][part])
        fragment.agreed_at = min(state["agreed_at"][part])
        arrived = zip(fragment.agreed, state["arrived"].get(number, ()), strict=False)
        fragment.gradients = [g.detach().to(agreed, copy=True) for agreed, g in arrived]
        begin = part.stop
    return int(state["step"])


class OuterHeader(NamedTuple):
    """An outer state without its tensors: what a rank has to make room for."""

    step: int
    agreed_at: list[int]
    has_momentum: bool
    arrived: dict[int, int]  # by fragment: for how many parameters
    schedule: dict[str, int]

    @classmethod
    def of(cls, state: dict[str, Any]) -> OuterHeader:
        """The header of a state."""
        arrived = {number: len(found) for number, found in state["arrived"].items()}
        described = state["agreed_at"], bool(state["momentum"]), arrived, state["schedule"]
        return cls(state["step"], *described)

    def make_room(self, fragments: Sequence[Fragment]) -> dict[str, Any]:
        """A state of this form for these parameters; contents of tensors are unspecified."""
        for fragment in fragments:
            fragment.begin()
        agreed = [tensor for each in fragments for tensor in each.agreed]
        found = [torch.empty_like(tensor) for tensor in agreed] if self.agreed_at else []
        return {
            "step": self.step,
            "agreed": found,
            "momentum": [torch.empty_like(tensor) for tensor in found if self.has_momentum],
            "agreed_at": self.agreed_at,
            "arrived": {
                number: [torch.empty_like(tensor) for tensor in fragments[number].agreed[:count]]
                for number, count in self.arrived.items()
            },
            "schedule": self.schedule,
        }

    def tensors_of(self, state: dict[str, Any], name: str) -> list[tuple[str, Tensor]]:
        """The tensors of a state of this form, in the same order on every rank."""
        lists = {key: state[key] for key in _LISTS}
        lists.update({f"arrived.{number}": state["arrived"][number] for number in self.arrived})
        return [
            (f"{name}.{key}.{index}", tensor)
            for key, tensors in lists.items()
            for index, tensor in enumerate(tensors)
        ]


def digest_of(state: dict[str, Any]) -> str:
    """Equal for equal states, of any rank."""
    header = OuterHeader.of(state)
    digest = hashlib.sha256(repr(header).encode())
    for _, tensor in header.tensors_of(state, ""):
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.cpu().numpy().data)
    return digest.hexdigest()


def send_tensors(
    named: Sequence[tuple[str, Tensor]],
    root_rank: int,
    receivers: Collection[int],
    process_set: ProcessSet,
) -> None:
    """Overwrite the tensors of some ranks with the root's; blocks until done.

    All ranks of the set call it with tensors of the same names, shapes and dtypes. Links between
    hosts carry the tensors once for each receiver.

    Raises:
        HorovodInternalError: a rank was lost.
    """
    is_root = rank() == root_rank
    splits = [int(is_root and each in receivers) for each in process_set.ranks or ()]

    def start() -> Iterator[tuple[int, Tensor]]:
        for name, tensor in named:
            rows = tensor.detach().expand(sum(splits), *tensor.shape).contiguous()
            yield adapter.alltoall_async(rows, splits, name, process_set), tensor

    def finish(started: tuple[int, Tensor]) -> None:
        handle, tensor = started
        received, _ = adapter.synchronize(handle)
        if rank() in receivers:
            tensor.copy_(received[0])

    wait_for_all(start(), finish)


def _schedule(rules: LocalSteps) -> dict[str, int]:
    return {key: getattr(rules, key) for key in ("sync_every", "fragments", "overlap")}


def _check(
    state: dict[str, Any], fragments: Sequence[Fragment], rules: LocalSteps, are_fixed: bool
) -> None:
    expected = [list(param.shape) for each in fragments for param in each.params]
    for key in _LISTS if state["momentum"] else _LISTS[:1]:
        found = [list(tensor.shape) for tensor in state[key]]
        if found != expected:
            raise ValueError(
                f"{rules.title}: load_state_dict: {key!r} has {len(found)} tensors of shapes "
                f"{found}, expected {len(expected)} of {expected}"
            )
    given = state["schedule"]["fragments"]
    if are_fixed and given != rules.fragments:
        raise ValueError(
            f"{rules.title}: load_state_dict: the state is of an optimizer with fragments={given}, "
            f"expected {rules.fragments}, since it has what a compression has not sent; use "
            f"fragments={given}, or leave out 'compression_errors', which is lost then"
        )
    if state["arrived"] and state["schedule"] != _schedule(rules):
        raise ValueError(
            f"{rules.title}: load_state_dict: fragments {list(state['arrived'])} were on their way "
            f"with {state['schedule']}, found {_schedule(rules)}; use the same arguments, or save "
            "after finish()"
        )


@torch.no_grad()
def copy_all(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Overwrite each tensor with its value."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
