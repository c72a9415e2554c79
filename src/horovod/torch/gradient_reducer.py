"""Reduces gradients while backward runs: hooks, batches, completion.

``DistributedOptimizer`` owns one ``GradientReducer``. Each parameter has a hook that autograd calls
when its gradient is final (on the thread that runs backward). A hook only counts; whole batches of
gradients go to the engine, each gradient as its own named operation, so that ranks may batch and
order them differently. Hooks hold the reducer weakly: parameters never keep it alive, and when it
goes, its hooks go.

On a machine without cores to spare, reducing during backward would only take its time. Then all
gradients go in one batch at the end, and after a first step that reached every parameter one hook
stays, on the parameter that came last: it notices misuse, the others only cost time.

Words: a parameter is *ready* when its gradient may be reduced in this step, *sent* when the engine
has it, *missing* when the step ends and it was never ready.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from horovod.compression import Compressor, NoneCompressor
from horovod.errors import HorovodInternalError
from horovod.operations import Intent
from horovod.torch import adapter

__all__ = ["BATCH_BYTES", "GradientReducer"]

# Large enough that a batch costs far more to move than to submit, small enough that the first one
# leaves early in backward.
BATCH_BYTES = 1 << 20


class _Copy(NamedTuple):
    """A gradient that travels as another tensor: compressed, or a contiguous copy."""

    grad: Tensor
    wire: Tensor
    context: Any


class _Batch(NamedTuple):
    """One submission, until it is complete."""

    handle: int
    copies: list[_Copy]


class _Progress:
    """Bytes of gradients in this step.

    Invariant: ``target - room`` bytes are ready and not sent; ``unsent`` counts them too.
    """

    __slots__ = ("room", "target", "unsent")

    def __init__(self) -> None:
        self.unsent = 0  # not yet with the engine
        self.target = 0  # size of the batch that is filling
        self.room = 0  # what it still takes; at 0 it is sent

    def open_batch(self, batch_bytes: int) -> None:
        self.target = self.room = min(batch_bytes, self.unsent)


class GradientReducer:
    """Reduces the gradients of a list of parameters once per optimizer step.

    Args:
        compression: what travels; the same on every rank.
        passes: backward passes that add up in a gradient before it is reduced.
        op: reduce op; the same on every rank.
        prescale: multiplies every gradient before the reduction; the same on every rank.
        postscale: multiplies every result; the same on every rank.
    """

    def __init__(
        self,
        compression: type[Compressor],
        passes: int,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> None:
        self._compression = compression
        self._is_plain = compression is NoneCompressor
        self._passes = passes
        self._operation = (op, prescale, postscale)
        self._overlaps = adapter.spare_cores()
        self._batch_bytes = BATCH_BYTES if self._overlaps else sys.maxsize
        self._params: list[Tensor] = []
        self._names: list[str] = []
        self._passes_left: list[int] = []  # by parameter; 0: ready or sent
        self._ready: list[int] = []  # indices of parameters that the next batch takes
        self._last_sent = 0
        self._batches: list[_Batch] = []
        self._frozen: list[tuple[Tensor, str]] = []
        self._size_bytes = 0
        self._progress = _Progress()
        self._send_lock = threading.Lock()  # every device has its own thread in backward
        self._make_hook = _hook_maker(self)
        self._hooks: list[RemovableHandle] = []
        weakref.finalize(self, _remove_hooks, self._hooks).atexit = False

    @property
    def in_flight(self) -> bool:
        """Whether gradients are ready or sent, so that nobody else may write to them."""
        return bool(self._batches or self._ready)

    def add(self, params: Sequence[Tensor], names: Sequence[str]) -> None:
        """Reduce these parameters too, from now on.

        Those that need no gradient join at the end of the first step that finds them trainable; all
        ranks have to make a parameter trainable in the same step.
        """
        for param, name in zip(params, names, strict=True):
            if param.requires_grad:
                self._hook(param, name)
            else:
                self._frozen.append((param, name))
        if not self.in_flight:
            self._restart()

    def set_passes(self, passes: int) -> None:
        """Change how many backward passes add up; takes effect at once if nothing is in flight."""
        self._passes = passes
        if not self.in_flight:
            self._restart()

    def synchronize(self) -> None:
        """Wait until the gradient of every parameter is reduced; blocks as long as the engine does.

        Parameters that were not ready are reduced with the gradient they have, or zeros.

        Raises:
            HorovodInternalError: some reduction failed; all others have ended, nothing is in flight
                and gradients are unspecified.
        """
        try:
            self._take_missing()
            if self._ready:
                self._send(Intent.WAIT)
            self._complete()
        except Exception:
            self.drop()
            raise
        self._restart()

    def drop(self) -> None:
        """Forget what is ready, wait for what was sent, start counting anew; gradients stay."""
        self._ready.clear()
        for batch in self._batches:
            try:
                adapter.synchronize(batch.handle)
            except HorovodInternalError:
                continue  # the caller gives these results up anyway
        self._batches.clear()
        self._restart()

    def send_ready(self) -> None:
        """Hand the ready gradients to the engine; called by the hook that fills a batch."""
        self._send(Intent.MORE)

    def _send(self, intent: Intent) -> None:
        with self._send_lock:
            progress = self._progress
            progress.unsent -= progress.target - progress.room
            progress.open_batch(self._batch_bytes)
            if progress.unsent <= 0 and intent is Intent.MORE:
                intent = Intent.COMPUTE
            count = len(self._ready)  # another thread's hooks may append meanwhile
            ready = self._ready[:count]
            wires = self._gradients(ready)
            copies = self._replace_wires(wires)
            names = self._names
            handle = adapter.allreduce_batch_async_(
                wires,
                [names[index] for index in ready],
                *self._operation,
                intent=intent,
            )
            self._batches.append(_Batch(handle, copies))
            self._last_sent = ready[-1]
            del self._ready[:count]

    def _gradients(self, ready: list[int]) -> list[Tensor]:
        """The gradients of these parameters, zeros set where there is none."""
        params = self._params
        grads: list[Tensor] = []
        for index in ready:
            grad = params[index].grad
            if grad is None:
                grad = params[index].grad = torch.zeros_like(params[index], requires_grad=False)
            grads.append(grad)
        # Inside backward, grad mode is on only with create_graph=True.
        if torch.is_grad_enabled() and any(grad.requires_grad for grad in grads):
            raise AssertionError(
                "a gradient that requires a gradient itself cannot be reduced: use "
                "torch.autograd.grad(create_graph=True) instead of backward(create_graph=True)"
            )
        return grads

    @torch.no_grad()
    def _replace_wires(self, wires: list[Tensor]) -> list[_Copy]:
        """Put what travels into ``wires`` where it is not the gradient itself.

        Ranks may keep a gradient in different memory orders; all send it in logical order.
        """
        if self._is_plain and all(map(Tensor.is_contiguous, wires)):
            return []
        copies = []
        for k, grad in enumerate(wires):
            if self._is_plain and grad.is_contiguous():
                continue
            if grad.layout is not torch.strided:
                raise ValueError(
                    "DistributedOptimizer reduces dense gradients only, found one of layout "
                    f"{grad.layout}; an embedding gives dense ones with sparse=False"
                )
            wire, context = self._compression.compress(grad)
            wires[k] = wire.contiguous()
            copies.append(_Copy(grad, wires[k], context))
        return copies

    def _take_missing(self) -> None:
        if self._frozen:
            self._adopt_trainable()
        passes_left = self._passes_left
        if any(passes_left):
            self._ready.extend(compress(range(len(passes_left)), passes_left))
            passes_left[:] = [0] * len(passes_left)
        elif not self._overlaps:
            _remove_hooks(self._hooks[: self._last_sent] + self._hooks[self._last_sent + 1 :])

    def _adopt_trainable(self) -> None:
        frozen = self._frozen
        self._frozen = [entry for entry in frozen if not entry[0].requires_grad]
        for param, name in frozen:
            if param.requires_grad:
                self._hook(param, name)

    def _complete(self) -> None:
        batches = self._batches
        while batches:
            # Stays listed until it is complete, so that ``drop`` waits for those after a failure.
            adapter.synchronize(batches[0].handle)
            if batches[0].copies:
                self._copy_back(batches[0].copies)
            del batches[0]

    @torch.no_grad()
    def _copy_back(self, copies: list[_Copy]) -> None:
        for grad, wire, context in copies:
            reduced = self._compression.decompress(wire, context)
            if reduced is not grad:
                grad.copy_(reduced)

    def _restart(self) -> None:
        self._passes_left[:] = [self._passes] * len(self._params)
        self._progress.unsent = self._size_bytes
        self._progress.open_batch(self._batch_bytes)

    def _hook(self, param: Tensor, name: str) -> None:
        # At least 1: an empty gradient is awaited, too.
        size_bytes = max(param.numel() * param.element_size(), 1)
        hook = self._make_hook(len(self._params), size_bytes)
        handle = param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._hooks.append(handle)
        self._params.append(param)
        self._names.append(name)
        self._passes_left.append(self._passes)
        self._size_bytes += size_bytes


def _hook_maker(reducer: GradientReducer) -> Callable[[int, int], Callable[[Tensor], None]]:
    """A function that makes the hook of one parameter.

    Hooks run once per parameter and step, so they use local names only, and never a strong
    reference to the reducer.
    """
    passes_left = reducer._passes_left
    append_ready = reducer._ready.append
    progress = reducer._progress
    reducer_ref = weakref.ref(reducer)

    def count_pass(index: int, left: int) -> None:
        if left < 0:
            raise AssertionError(_too_many_passes(reducer_ref(), index))
        passes_left[index] = left

    def send_ready() -> None:
        alive = reducer_ref()
        if alive is not None:
            alive.send_ready()

    def make(index: int, size_bytes: int) -> Callable[[Tensor], None]:
        def hook(_: Tensor) -> None:
            left = passes_left[index] - 1
            if left:
                return count_pass(index, left)
            passes_left[index] = 0
            append_ready(index)
            progress.room -= size_bytes
            if progress.room <= 0:
                send_ready()
            return None

        return hook

    return make


def _too_many_passes(reducer: GradientReducer | None, index: int) -> str:
    name = reducer._names[index] if reducer else f"parameter {index}"
    return (
        f"the gradient of {name!r} was computed more often than backward_passes_per_step before "
        "step() or synchronize(); to accumulate gradients over several backward passes, increase "
        "backward_passes_per_step"
    )


def _remove_hooks(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
