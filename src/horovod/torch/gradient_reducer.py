"""Reduces gradients while backward runs: batches, groups, completion.

``DistributedOptimizer`` owns one ``GradientReducer``. Each parameter has a hook that autograd calls
when its gradient is final (on the thread that runs backward). A hook only counts; whole batches of
gradients go to the engine, each gradient as its own named operation, so that ranks may batch and
order them differently. Hooks hold the reducer weakly: parameters never keep it alive, and when it
goes, its hooks go.

On a machine without spare cores, reducing would slow backward down, unless a GPU does both. Then
all gradients go in one batch at the end. After a first step that has reached every parameter, only
the hook of the last parameter stays, or one of each group that an exchange needs. They notice
misuse; the others only cost time.

Gradients of a *group* are sent together when the last of them is ready. A compressor with an
exchange of its own gets groups only, because batches have to be the same on all ranks there.

Words: a parameter is *ready* when its gradient may be reduced in this step, *sent* when the engine
has it, *held* when it is ready but sparse, *missing* when the step ends and it was never ready.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import compress

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from horovod.core.compression import NoneCompressor
from horovod.core.gradient_groups import BATCH_BYTES, GPU_BATCH_BYTES
from horovod.core.operations import Intent
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.errors import HorovodInternalError
from horovod.torch import adapter
from horovod.torch.error_feedback import RankErrors
from horovod.torch.feedback_exchange import Batch as FeedbackBatch
from horovod.torch.feedback_exchange import FeedbackExchange
from horovod.torch.gradient_exchange import (
    Compression,
    Exchange,
    ExchangeCompressor,
    Pending,
    PlainExchange,
    are_in_order,
)
from horovod.torch.gradient_hooks import (
    GradientGroup,
    Hook,
    Progress,
    batch_hook_maker,
    group_hook_maker,
    split_by_bytes,
)
from horovod.torch.parameters import plain_name
from horovod.torch.sparse_gradients import SparseGradients
from horovod.torch.uncompiled import keep_uncompiled


class GradientReducer:
    """Reduces the gradients of a list of parameters once per optimizer step.

    Args:
        compression: what travels; the same on every rank.
        passes: backward passes that add up in a gradient before it is reduced.
        op: reduce op; the same on every rank.
        prescale: multiplies every gradient before the reduction; the same on every rank.
        postscale: multiplies every result; the same on every rank.
        process_set: the ranks that reduce; this one is among them.
        sparse_as_dense: sparse gradients travel as dense ones.
        is_sparse: every gradient is sparse, those that are missing too.
    """

    def __init__(
        self,
        compression: Compression,
        passes: int,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        process_set: ProcessSet = global_process_set,
        sparse_as_dense: bool = False,
        is_sparse: bool = False,
    ) -> None:
        self._passes = passes
        operation = (op, prescale, postscale)
        self._exchange: Exchange | None = None
        if isinstance(compression, ExchangeCompressor):
            self._exchange = compression.make_exchange(*operation, process_set)
            compression = NoneCompressor
        self._plain = PlainExchange(compression, operation, process_set)
        self._overlaps = adapter.spare_cores()
        self._first_bytes = self._batch_bytes = BATCH_BYTES if self._overlaps else sys.maxsize
        self._params: list[Tensor] = []
        self._names: list[str] = []
        self._passes_left: list[int] = []  # by parameter; 0: ready or sent
        self._ready: list[int] = []  # indices of parameters that the next batch takes
        self._last_sent = 0
        self._batches: list[Pending] = []
        self._groups: list[GradientGroup] = []
        self._grouped: set[int] = set()  # indices of their parameters
        self._frozen: list[tuple[Tensor, str]] = []
        self._sparse = SparseGradients(
            self._params, self._names, operation, process_set, sparse_as_dense, is_sparse
        )
        self._size_bytes = 0
        self._progress = Progress()
        self._send_lock = threading.Lock()  # every device has its own thread in backward
        self._make_hook = batch_hook_maker(self, self._passes_left, self._ready, self._progress)
        self._make_group_hook = group_hook_maker(self, self._passes_left)
        self._hooks: list[RemovableHandle] = []
        weakref.finalize(self, _remove_hooks, self._hooks).atexit = False

    @property
    def feedback(self) -> RankErrors | None:
        """What a compressor has left out of gradients; None if it keeps that itself, or nothing."""
        return getattr(self._exchange, "feedback", self._plain.feedback)

    @property
    def is_pending(self) -> bool:
        """Whether gradients are ready or sent, so that other code must not write to them."""
        return (
            bool(self._batches or self._ready)
            or self._sparse.is_pending
            or any(group.is_pending for group in self._groups)
        )

    def passes_left(self) -> dict[Tensor, int]:
        """Of each trainable parameter the backward passes until its gradient is ready; 0: it is."""
        return dict(zip(self._params, self._passes_left, strict=True))

    def add(
        self,
        params: Sequence[Tensor],
        names: Sequence[str],
        groups: Iterable[Sequence[Tensor]] = (),
    ) -> None:
        """Reduce these parameters too, from now on.

        Those that need no gradient join at the end of the first step that finds them trainable,
        without a group; all ranks have to make a parameter trainable in the same step.

        Args:
            params: in the same order on every rank.
            names: full names of their allreduces.
            groups: those of ``params`` that leave together; the same on every rank.
        """
        names_of = dict(zip(params, names, strict=True))
        if any(param.is_cuda for param in params):
            self._overlaps = True
            self._first_bytes, self._batch_bytes = BATCH_BYTES, GPU_BATCH_BYTES
        self._frozen += [entry for entry in names_of.items() if not entry[0].requires_grad]
        self._add_trainable({p: name for p, name in names_of.items() if p.requires_grad}, groups)
        if not self.is_pending:
            self._restart()

    def set_passes(self, passes: int) -> None:
        """Change how many backward passes add up; takes effect at once if nothing is pending."""
        self._passes = passes
        if not self.is_pending:
            self._restart()

    def forget_passes(self) -> None:
        """Start counting backward passes anew; nothing is pending."""
        if self._passes > 1:  # else a gradient is pending after its first pass
            self._restart()

    def synchronize(self) -> None:
        """Wait until the gradient of every parameter is reduced; blocks as long as the engine does.

        Parameters that were not ready are reduced with the gradient they have, or zeros.

        Raises:
            HorovodInternalError: some reduction failed; all others have ended, nothing is pending
                and gradients are unspecified.
        """
        try:
            if self._frozen:
                self._adopt_trainable()
            self._sparse.agree()
            self._take_missing()
            for group in self._groups:
                self._start_group(group)
            if self._ready:
                self._send(Intent.WAIT)
            for gathered in self._sparse.gather():
                self._batches.append(gathered)
            self._complete()
        except Exception:
            self.drop()
            raise
        self._restart()

    def drop(self) -> None:
        """Forget what is ready, wait for what was sent, start counting anew.

        Gradients that were sent are unspecified.
        """
        self._ready.clear()
        self._collect_groups()
        for batch in self._batches:
            with suppress(HorovodInternalError):  # the caller gives these results up anyway
                if isinstance(batch, FeedbackBatch):
                    batch.drop()  # to finish it, it would have to send more
                else:
                    batch.finish()
        self._batches.clear()
        self._sparse.drop()
        self._restart()

    def send_ready(self) -> None:
        """Hand the ready gradients to the engine; called by the hook that fills a batch."""
        self._send(Intent.MORE)

    def send_group(self, group: GradientGroup) -> None:
        """Hand a group to the engine; called by the hook of its last gradient.

        Before it is known which of its gradients are sparse everywhere it has to wait.
        """
        if self._sparse.know(group.indices):
            self._start_group(group)

    def name_of(self, index: int) -> str:
        """The parameter's name, for errors."""
        return self._names[index]

    def _send(self, intent: Intent) -> None:
        with self._send_lock:
            progress = self._progress
            progress.unsent -= progress.target - progress.room
            progress.open_batch(self._batch_bytes)
            if progress.unsent <= 0 and intent is Intent.MORE:
                intent = Intent.COMPUTE
            count = len(self._ready)  # another thread's hooks may append meanwhile
            ready = self._ready[:count]
            dense = self._sparse.hold(ready)
            if dense:
                names = self._names
                batch = [names[index] for index in dense]
                grads, are_regular = self._gradients(dense)
                self._batches.append(self._plain.start(batch, grads, intent, are_regular))
            self._last_sent = ready[-1]
            del self._ready[:count]

    def _start_group(self, group: GradientGroup) -> None:
        with self._send_lock:
            if group.is_sent:
                return
            dense = self._sparse.hold(group.indices)
            if dense:
                grads, _ = self._gradients(dense)
                names = [self._names[index] for index in dense]
                group.pending = self._exchanged(group, names, grads)
            group.is_sent = True

    def _exchanged(
        self, group: GradientGroup, names: list[str], gradients: list[Tensor]
    ) -> Pending:
        exchange = self._exchange
        if exchange is None:
            return self._plain.start_group(group.name, gradients, names)
        plain_names = list(map(plain_name, names))
        if not isinstance(exchange, FeedbackExchange):
            return exchange.start(plain_names, gradients)
        instead_of = [f"grouped_allreduce.{group.name}"] if group.is_chosen else names
        return exchange.start(plain_names, gradients, instead_of=instead_of)

    def _gradients(self, ready: list[int]) -> tuple[list[Tensor], bool]:
        """The dense gradients of these parameters, and whether all are known to be contiguous.

        Zeros are set where there is none.
        """
        params = self._params
        grads: list[Tensor] = []
        for index in ready:
            grad = params[index].grad
            if grad is None:
                grad = params[index].grad = self._sparse.zeros(index)
            grads.append(grad)
        # Inside backward, grad mode is on only with create_graph=True.
        if torch.is_grad_enabled() and any(grad.requires_grad for grad in grads):
            raise AssertionError(
                "a gradient that requires a gradient itself cannot be reduced: use "
                "torch.autograd.grad(create_graph=True) instead of backward(create_graph=True)"
            )
        if are_in_order(grads):
            return grads, True
        return self._sparse.densify(ready, grads), False

    def _take_missing(self) -> None:
        passes_left = self._passes_left
        self._ready += self._sparse.release()
        if any(passes_left):
            missing = compress(range(len(passes_left)), passes_left)
            self._ready += [index for index in missing if index not in self._grouped]
            passes_left[:] = [0] * len(passes_left)
        elif not self._overlaps and (self._exchange is not None or not self._groups):
            kept = {group.indices[0] for group in self._groups} or {self._last_sent}
            _remove_hooks([hook for i, hook in enumerate(self._hooks) if i not in kept])

    def _adopt_trainable(self) -> None:
        frozen = self._frozen
        self._frozen = [entry for entry in frozen if not entry[0].requires_grad]
        self._add_trainable({param: name for param, name in frozen if param.requires_grad})

    def _complete(self) -> None:
        self._collect_groups()
        batches = self._batches
        while batches:
            # Stays listed until it is complete: after a Ctrl-C it is still under way.
            try:
                batches[0].finish()
            except Exception:
                del batches[0]
                raise
            del batches[0]
        self._sparse.restore()

    def _collect_groups(self) -> None:
        """Groups are finished in their own order, the same on every rank."""
        for group in self._groups:
            if group.pending is not None:
                self._batches.append(group.pending)
                group.pending = None

    def _restart(self) -> None:
        self._passes_left[:] = [self._passes] * len(self._params)
        self._progress.unsent = self._size_bytes
        self._progress.open_batch(self._first_bytes)
        for group in self._groups:
            group.restart()

    def _add_trainable(
        self, names: dict[Tensor, str], groups: Iterable[Sequence[Tensor]] = ()
    ) -> None:
        all_groups = [(group, True) for group in groups]
        if self._exchange is not None:
            chosen = {param for group, _ in all_groups for param in group}
            rest = [param for param in names if param not in chosen]
            all_groups += [(group, False) for group in split_by_bytes(rest, self._batch_bytes)]
        index_of = {param: index for index, param in enumerate(names, len(self._params))}
        group_of: dict[Tensor, GradientGroup] = {}
        for members, is_chosen in all_groups:
            indices = [index_of[param] for param in members]
            group = GradientGroup(f"{plain_name(names[members[0]])}.group", indices, is_chosen)
            self._groups.append(group)
            self._grouped.update(indices)
            group_of.update(dict.fromkeys(members, group))
        for param, name in names.items():
            self._hook(param, name, group_of.get(param))
        self._sparse.add(len(names))

    def _hook(self, param: Tensor, name: str, group: GradientGroup | None) -> None:
        index = len(self._params)
        if group is None:
            # At least 1: an empty gradient is awaited, too.
            size_bytes = max(param.numel() * param.element_size(), 1)
            self._size_bytes += size_bytes
            hook: Hook = self._make_hook(index, size_bytes)
        else:
            hook = self._make_group_hook(index, group)
        keep_uncompiled(hook)
        handle = param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._hooks.append(handle)
        self._params.append(param)
        self._names.append(name)
        self._passes_left.append(self._passes)


def _remove_hooks(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
