"""The optimizer whose ranks step alone; ``local_steps.py`` says what it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from horovod.core.compression import Compressor
from horovod.core.local_steps import LocalSteps, describe, parts_of
from horovod.core.operations import Average
from horovod.core.process_sets import ProcessSet, check_process_set
from horovod.core.world import cross_size, has_others
from horovod.elastic import is_elastic_job
from horovod.numpy.objects import check_equal_settings
from horovod.torch.error_feedback import has_errors, load_errors, with_errors, without_errors
from horovod.torch.fragment_transfer import transfer
from horovod.torch.fragments import (
    Fragment,
    FragmentHeader,
    Take,
    copied,
    copy_all,
    moved,
    outer_state,
    put_outer_state,
)
from horovod.torch.functions import digest_of_options
from horovod.torch.gradient_exchange import ExchangeCompressor, PlainExchange
from horovod.torch.parameters import choose_names
from horovod.torch.topk import TopK, TopKExchange
from horovod.torch.wrapped_optimizer import SteppingAlone, check_optimizer, wrap

OUTER_STATE = "local_steps"  # in the state_dict


class Standing(NamedTuple):
    """Where a rank is, for ranks to compare before states are sent."""

    step: int
    digests: list[str]  # see ``LocalStepsOptimizer.digests``
    headers: list[FragmentHeader]
    options: str  # a digest of those of parameter groups; empty: unknown
    hosts: int
    note: Any


class LocalStepsOptimizer(SteppingAlone):
    """What ``DiLoCo`` and ``LocalSGD`` add to an optimizer class; never made on its own.

    Attributes:
        local_step: steps so far; equal on all ranks.
    """

    local_step: int
    _rules: LocalSteps
    _fragments: list[Fragment]
    _exchange: PlainExchange | TopKExchange

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make the original step on this rank's gradients, and send and merge what is due.

        Blocks only where a result is due that is not there yet. All ranks of the set have to call
        it equally often, also one whose gradients a GradScaler finds infinite. A call in
        which the original raises does not count: make it again.

        Args:
            closure: recomputes the loss; called as the original does, without communication.

        Returns:
            What the original ``step`` returns.

        Raises:
            HorovodInternalError: a reduction failed.
            ValueError: a parameter requires a gradient now that did not when it was wrapped.
        """
        is_member = self._is_member
        if is_member:
            self._begin()
        result = self._step_alone(closure)
        self.local_step += 1
        if is_member:
            self._exchange_due()
        return result

    # Optimizer wraps ``step`` of each class to run step hooks; the original's is wrapped already.
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Do nothing: gradients are this rank's own. See ``finish``."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Change nothing: ``step`` never reduces gradients."""
        yield

    def finish(self) -> None:
        """Agree on all parameters now; blocks until all ranks of the set call it.

        At the end of training. What is under way is merged, and an outer step is made of what ranks
        have changed since. Afterwards all ranks have the agreed parameters, and may go on.

        Raises:
            HorovodInternalError: a reduction failed.
        """
        if not self._is_member:
            return
        self._begin()
        for fragment in self._fragments:
            if fragment.gradients:
                fragment.merge(self._rules.merge_weight, self.local_step)
        late = [each for each in self._fragments if each.agreed_at != self.local_step]
        for fragment in late:
            self._send(fragment, 0)
        for fragment in late:
            fragment.merge(1.0, self.local_step)

    @contextmanager
    def agreed_parameters(self) -> Iterator[None]:
        """Inside, the parameters are those that ranks last agreed on: to evaluate or save them.

        No communication. Afterwards this rank has its own again. Do not step inside.
        """
        pairs = [
            (param, agreed)
            for fragment in self._fragments
            for param, agreed in zip(fragment.params, fragment.agreed, strict=False)
        ]
        params = [param for param, _ in pairs]
        own = [param.detach().clone() for param in params]
        copy_all(params, [agreed for _, agreed in pairs])
        try:
            yield
        finally:
            copy_all(params, own)

    def state_dict(self) -> dict[str, Any]:
        """The original's, with ``"local_steps"``: agreed parameters, momentum, number of steps.

        Waits for what is under way, which the state then has, too. Inner state and parameters
        differ between ranks, but for those right after ``finish``.
        """
        for fragment in self._fragments:
            fragment.wait()
        found: dict[str, Any] = super().state_dict()
        found[OUTER_STATE] = outer_state(self._fragments, self._rules, self.local_step)
        return with_errors(found, self._exchange.feedback)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; what is under way is dropped.

        One without ``"local_steps"``, of the original optimizer, starts counting anew.

        Raises:
            ValueError: it does not fit the parameters or the arguments.
        """
        self._load(state_dict, copied)

    def take_state_dict(self, state_dict: dict[str, Any]) -> None:
        """``load_state_dict`` without copies of outer tensors, which nothing may change later."""
        self._load(state_dict, moved)

    def _load(self, state_dict: dict[str, Any], take: Take) -> None:
        self.drop()
        outer = state_dict.get(OUTER_STATE)
        given = {key: value for key, value in state_dict.items() if key != OUTER_STATE}
        super().load_state_dict(without_errors(given))
        feedback = self._exchange.feedback
        are_fixed = has_errors(given, feedback)
        self.local_step = put_outer_state(outer, self._fragments, self._rules, are_fixed, take)
        load_errors(given, feedback)

    def drop(self) -> None:
        """Give up what is under way; what this rank has changed is sent the next time."""
        for fragment in self._fragments:
            fragment.drop()

    def restart_from_agreed(self) -> None:
        """Make the agreed parameters this rank's own, as a rank does that joins."""
        for fragment in self._fragments:
            copy_all(fragment.params, fragment.agreed)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters as the original does; they join the last fragment. Same on every rank."""
        super().add_param_group(param_group)
        params = _trainable([self.param_groups[-1]])
        _check_params(self._rules.title, params, self._parameter_names)
        self._fragments[-1].params += params

    def broadcast_rest(self, root_rank: int, process_set: ProcessSet) -> None:
        """Give all ranks the root's agreed parameters, outer momentum and number of steps.

        Only digests travel to ranks that have them already, such as those that stay when a rank is
        lost or another joins.
        """
        self.take_over(root_rank, self.standings(process_set), process_set)

    def take_over(
        self, root_rank: int, standings: Sequence[Standing], process_set: ProcessSet
    ) -> None:
        """The same where ranks have exchanged their standings; blocks until done."""
        members = list(process_set.ranks or ())
        root = standings[members.index(root_rank)]
        found = list(zip(members, standings, strict=True))
        lacking = {
            number: [each for each, at in found if at.digests[number] != digest]
            for number, digest in enumerate(root.digests)
        }
        name, hosts = f"{self._rules.name}.state", min(at.hosts for at in standings)
        where = name, root_rank, process_set, hosts
        transfer(self._fragments, lacking, root.headers, *where)
        self.local_step = root.step

    def standings(self, process_set: ProcessSet, note: Any = None) -> list[Standing]:
        """Where the ranks of a set are, this one among them; blocks until all are here.

        Waits for what is under way. ``note`` travels with this rank's.

        Raises:
            ValueError: a rank has other settings than the first one; on all ranks alike.
        """
        rules = self._rules
        digests, headers = self.digests(), [each.header for each in self._fragments]
        options = digest_of_options(self)
        own = Standing(self.local_step, digests, headers, options, cross_size(), note)
        settings = self._settings()
        return check_equal_settings(rules.title, rules.name, settings, process_set, own)

    def digests(self) -> list[str]:
        """By fragment, of agreed parameters, outer momentum and what has arrived.

        Waits for what is under way. What has not changed since the last call costs nothing.
        """
        for fragment in self._fragments:
            fragment.wait()
            if fragment.has_begun:
                fragment.begin()  # for parameters that came after the last step
        return [each.digest() for each in self._fragments]

    @property
    def fragments(self) -> Sequence[Fragment]:
        """The parts of the parameters that are sent at a time; for elastic states."""
        return self._fragments

    @property
    def _is_member(self) -> bool:
        return bool(self.process_set.included())

    def _settings(self) -> dict[str, Any]:
        shapes = [param.shape for fragment in self._fragments for param in fragment.params]
        groups = [len(group["params"]) for group in self.param_groups]
        settings = self._rules.settings(self._compression, describe(shapes))
        return {**settings, "optimizer": type(self).__name__, "groups of parameters": groups}

    def _begin(self) -> None:
        for fragment in self._fragments:
            fragment.begin()

    def _exchange_due(self) -> None:
        rules, step = self._rules, self.local_step
        sent = [self._fragments[number] for number in rules.sent_after(step)]
        due = sent
        if rules.overlap:
            due = [self._fragments[number] for number in rules.merged_after(step)]
        if sent:
            self._check_all_known()
        for fragment in sent:
            self._send(fragment, step)
        for fragment in due:
            if fragment.gradients:  # else it was dropped
                fragment.merge(rules.merge_weight, step)

    def _send(self, fragment: Fragment, step: int) -> None:
        """By an exchange of its own, if an exchange finishes all that it has under way."""
        exchange = self._exchange
        if isinstance(exchange, TopKExchange):
            exchange = exchange.with_same_errors()
        fragment.send(exchange, step, self._rules.must_compare(self.local_step, step))

    def _check_all_known(self) -> None:
        known = {param for fragment in self._fragments for param in fragment.params}
        for param in _trainable(self.param_groups):
            if param not in known:
                raise ValueError(
                    f"{self._rules.title}: {self._parameter_names[param]!r} requires a gradient, "
                    "and did not when the optimizer was wrapped: ranks would not agree on it. Let "
                    "it require one before, or add it by add_param_group"
                )


def make_optimizer(
    optimizer: torch.optim.Optimizer,
    rules: LocalSteps,
    compression: type[Compressor] | TopK,
    process_set: ProcessSet,
) -> LocalStepsOptimizer:
    """Wrap an optimizer; arguments, result and errors are those of ``DiLoCo``."""
    check_optimizer(rules.title, optimizer)
    is_refused = isinstance(compression, ExchangeCompressor) and not isinstance(compression, TopK)
    rules.check_compression(compression, is_refused, "tensors")
    check_process_set(process_set)
    names = choose_names(optimizer, None)
    params = _trainable(optimizer.param_groups)
    _check_params(rules.title, params, names)
    rules.check_fragments(len(params))
    result = wrap(optimizer, LocalStepsOptimizer)
    result.op, result.process_set, result._compression = Average, process_set, compression
    result.gradient_predivide_factor, result.backward_passes_per_step = 1.0, 1
    result._parameter_names, result._rules, result.local_step = names, rules, 0
    operation = Average, 1.0, 1.0
    result._exchange = (
        compression.make_exchange(*operation, process_set)
        if isinstance(compression, TopK)
        else PlainExchange(compression, operation, process_set, is_compared=True)
    )
    parts = parts_of([param.numel() for param in params], rules.fragments)
    result._fragments = [Fragment(number, params[part], rules) for number, part in enumerate(parts)]
    if has_others(process_set):
        if not is_elastic_job():
            check_equal_settings(rules.title, rules.name, result._settings(), process_set)
        result.expect_steps(rules.title)
    return result


def _trainable(groups: list[dict[str, Any]]) -> list[Tensor]:
    params = (param for group in groups for param in group["params"] if param.requires_grad)
    return list(dict.fromkeys(params))  # a parameter of two layers may be listed twice


def _check_params(title: str, params: list[Tensor], names: dict[Tensor, str]) -> None:
    for param in params:
        if param.layout is not torch.strided:
            kind = str(param.layout).removeprefix("torch.")
        elif not param.is_floating_point():
            kind = str(param.dtype).removeprefix("torch.")
        else:
            continue
        raise ValueError(
            f"{title}: optimizer must have dense parameters of floating dtypes, found "
            f"{names[param]!r} of shape {list(param.shape)}, which is {kind}"
        )
