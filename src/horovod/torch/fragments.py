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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from horovod.core.local_steps import LocalSteps, checksum_of, mixed
from horovod.errors import HorovodInternalError, MismatchError
from horovod.torch.gradient_exchange import PendingGroup, PlainExchange
from horovod.torch.topk import TopKExchange

if TYPE_CHECKING:
    from horovod.elastic.parts import StatePart


class FragmentHeader(NamedTuple):
    """A fragment without its tensors: what a rank has to make room for."""

    agreed_at: int
    agreed: int  # how many tensors there are of each kind
    momentum: int
    arrived: int


_NOTHING = FragmentHeader(0, 0, 0, 0)  # there are no agreed parameters yet


class _Digest(NamedTuple):
    """The digest of what these are, and of what is in the tensors, which it does not keep."""

    header: FragmentHeader
    tensors: list[ref[Tensor]]
    text: str

    def is_of(self, header: FragmentHeader, tensors: Sequence[ref[Tensor]]) -> bool:
        """Whether it is theirs, without another look into them."""
        pairs = zip(self.tensors, tensors, strict=False)
        return self.header == header and all(one is other for one, other in pairs)


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
        self._digest: _Digest | None = None
        self.forget()

    @property
    def has_begun(self) -> bool:
        """Whether there are agreed parameters."""
        return bool(self.agreed)

    @property
    def header(self) -> FragmentHeader:
        """Its header; an outer gradient counts once it is averaged."""
        arrived = 0 if self._pending is not None else len(self.gradients)
        return FragmentHeader(self.agreed_at, len(self.agreed), len(self.momentum), arrived)

    @property
    def tensors(self) -> list[Tensor]:
        """Those that the header counts. No tensor is changed later: others take their places."""
        arrived = self.gradients if self._pending is None else ()
        return [*self.agreed, *self.momentum, *arrived]

    @property
    def part(self) -> StatePart:
        """Both as they are now; from any thread, where only a look at a pause shows all at once."""
        from horovod.elastic.parts import StatePart  # for processes that join, which are few

        pending, agreed_at = self._pending, self.agreed_at
        agreed, momentum, gradients = list(self.agreed), list(self.momentum), list(self.gradients)
        arrived = [] if pending is not None else gradients
        header = FragmentHeader(agreed_at, len(agreed), len(momentum), len(arrived))
        is_settled = pending is None and not gradients
        if not self._is_header(header):
            is_settled &= not (agreed or momentum)  # they are just being made
            header, agreed, momentum, arrived = _NOTHING, [], [], []
        tensors = (*agreed, *momentum, *arrived)
        size_bytes = sum(tensor.numel() * tensor.itemsize for tensor in tensors)
        return StatePart(header, tensors, size_bytes, agreed_at, is_settled)

    def digest(self) -> str:
        """Equal for equal fragments, of any rank. Nothing to do if it has not changed since."""
        header, tensors = self.header, self.tensors
        refs = [ref(tensor) for tensor in tensors]  # the same object for the same tensor
        if self._digest is None or not self._digest.is_of(header, refs):
            found = hashlib.sha256(repr(tuple(header)).encode())
            for tensor in tensors:
                found.update(bytes_of(tensor))
            self._digest = _Digest(header, refs, found.hexdigest())
        return self._digest.text

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
        self.begin_momentum()

    def begin_momentum(self) -> None:
        """Momentum is zero where there is none yet."""
        if self._rules.outer_momentum:
            self.momentum += map(torch.zeros_like, self.agreed[len(self.momentum) :])

    def make_room(self, header: FragmentHeader) -> None:
        """Have tensors as ``header`` says, with unspecified contents."""
        self.forget()
        if header.agreed:
            self.begin()
            self.gradients = [torch.empty_like(each) for each in self.agreed[: header.arrived]]
            self.agreed_at = header.agreed_at

    def check_header(self, header: FragmentHeader) -> None:
        """``ValueError`` if no fragment of these parameters has such a header."""
        if header != _NOTHING and not self._is_header(header):
            count = len(self.params)
            momentum = count if self._rules.outer_momentum else 0
            raise ValueError(f"{count} agreed, {momentum} of momentum, at most {count} more")

    def _is_header(self, header: FragmentHeader) -> bool:
        count = len(self.params)
        momentum = count if self._rules.outer_momentum else 0
        return header[1:3] == (count, momentum) and header.arrived <= count

    def room_bytes(self, header: FragmentHeader) -> int:
        """How many bytes the tensors of such a fragment have."""
        sizes = [param.numel() * _outer_dtype(param).itemsize for param in self.params]
        return sum(sum(sizes[:count]) for count in header[1:])

    @torch.no_grad()
    def send(
        self, exchange: PlainExchange | TopKExchange, step: int, must_compare: bool = False
    ) -> None:
        """Begin to average the outer gradient over ranks.

        Args:
            step: the number of the rank's step; 0 if it finishes.
            must_compare: have ranks with other agreed parameters refused.
        """
        pairs = zip(self.agreed, self.params, strict=True)
        gradients = [agreed - param for agreed, param in pairs]
        checksum = checksum_of(map(bytes_of, self.agreed)) if must_compare else None
        marker = gradients[0].new_empty(self._rules.marker_shape(step, checksum))
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


def bytes_of(tensor: Tensor) -> memoryview:
    """Its contents, in host memory."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    contents: memoryview = flat.cpu().numpy().data
    return contents


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


# A tensor of an outer state, for a parameter.
Take = Callable[[Tensor, Tensor], Tensor]


def copied(value: Tensor, param: Tensor) -> Tensor:
    """A copy beside the parameter, in the dtype of agreed parameters."""
    return value.detach().to(param.device, _outer_dtype(param), copy=True)


def moved(value: Tensor, param: Tensor) -> Tensor:
    """The same, or the tensor itself if it is right."""
    return value.to(param.device, _outer_dtype(param))


def _taken(values: Sequence[Tensor], fragment: Fragment, take: Take) -> list[Tensor]:
    return [take(*pair) for pair in zip(values, fragment.params, strict=False)]


def put_outer_state(
    state: dict[str, Any] | None,
    fragments: Sequence[Fragment],
    rules: LocalSteps,
    are_fixed: bool,
    take: Take,
) -> int:
    """Have the fragments go on from a state; the number of steps.

    Args:
        state: None: start anew.
        fragments: of all parameters.
        rules: their schedule.
        are_fixed: there are errors of a compression, which belong to the fragments of the state.
        take: what becomes of its tensors.

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
        fragment.agreed = _taken(state["agreed"][part], fragment, take)
        if rules.outer_momentum:
            fragment.momentum = _taken(state["momentum"][part], fragment, take)
        fragment.begin_momentum()
        fragment.agreed_at = min(state["agreed_at"][part])
        fragment.gradients = _taken(state["arrived"].get(number, ()), fragment, take)
        begin = part.stop
    return int(state["step"])


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
