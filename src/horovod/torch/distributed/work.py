"""What an operation of a process group returns: torch's ``Work`` over a handle of the engine.

A thread that waits for a work makes progress itself. Once a work has been asked for its future, no
thread will wait for its handle: then the engine's background thread makes progress, and a thread of
``completions`` takes the result and completes the future. ``backward`` has the exception.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.distributed import DistBackendError, Work
from torch.futures import Future

from horovod.torch.distributed.backward import is_called_by_cpp
from horovod.torch.distributed.completions import completions, deadlines

if TYPE_CHECKING:
    from horovod import _native
    from horovod.torch.distributed.members import Members

    # Puts what the engine has allocated where the caller wants it.
    Finish = Callable[[list[_native.Output]], None]

_MOST_UNWAITED = 64


class HorovodWork(Work):
    """An operation of a process group. ``tensors``: those with the result."""

    # Defaults of the class: a small operation takes not much longer than setting its attributes.
    error: BaseException | None = None
    is_waited_for = False  # a thread will wait for it, even where only its future is asked for
    _future: Future[Any] | None = None

    def __init__(self, tensors: list[torch.Tensor], source: int = -1) -> None:
        super().__init__()
        self.tensors = tensors
        self.source = source

    def is_completed(self) -> bool:
        """Whether it is over; never blocks for long."""
        raise NotImplementedError

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is over; True.

        Raises:
            DistBackendError: it was not, within ``timeout`` or the group's; the text names the
                ranks that have not started it.
            MismatchError: ranks disagree about it.
            HorovodInternalError: a rank was lost.
        """
        raise NotImplementedError

    def get_future(self) -> Future[Any]:
        """A future of ``result``."""
        if self._future is None:
            devices: list[Any] = sorted({str(t.device) for t in self.tensors if t.is_cuda})
            self._future = Future(devices=devices)
            self.begin_future()
        # C++ code takes an exception that Python has set for a result, but not that of a callback.
        return self._future.then(_value_of) if is_called_by_cpp(1) else self._future

    def begin_future(self) -> None:
        """From now on ``complete`` must be called at the end, whether a thread waits or not."""
        raise NotImplementedError

    def is_success(self) -> bool:
        """Whether it is over without an error."""
        return self.is_completed() and self.error is None

    def exception(self) -> BaseException | None:
        """The error with which it ended."""
        return self.error

    def synchronize(self) -> None:
        """As ``wait``."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensors with the result, which are valid after ``wait``."""
        return self.tensors

    def source_rank(self) -> int:
        """The rank in the group that a message came from."""
        return self.source

    def _source_rank(self) -> int:
        return self.source

    def give_up(self, error: BaseException) -> None:
        """A wait for it failed, perhaps after the time limit: its future gets the error."""
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_exception(error)

    def complete(self, error: BaseException | None) -> None:
        """It is over; callbacks of the future run here."""
        self.error = error
        if self._future is None:
            return
        if error is None:
            self._future.set_result(self.tensors)
        else:
            self._future.set_exception(error)


def _value_of(future: Future[Any]) -> Any:
    return future.value()


class AllWorks(HorovodWork):
    """Several operations, which are over together."""

    def __init__(self, works: list[HorovodWork], tensors: list[torch.Tensor]) -> None:
        super().__init__(tensors)
        self._works = works

    def is_completed(self) -> bool:
        """Whether all are over."""
        return all(work.is_completed() for work in self._works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all of them; see ``HorovodWork.wait``."""
        for work in self._works:
            work.wait(timeout)
        return True

    def begin_future(self) -> None:
        """The future is done with the last of them."""
        futures = [work.get_future() for work in self._works]
        torch.futures.collect_all(futures).then(self._ended)

    def _ended(self, all_futures: torch.futures.Future[Any]) -> None:
        try:
            for future in all_futures.value():
                future.value()
        except (ValueError, RuntimeError) as error:
            self.complete(error)
        else:
            self.complete(None)


class DoneWork(HorovodWork):
    """An operation that was over when its method returned."""

    _latest: ClassVar[deque[HorovodWork]] = deque(maxlen=_MOST_UNWAITED)  # see ``Unwaited``

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__(tensors)
        self._latest.append(self)

    def is_completed(self) -> bool:
        """True."""
        return True

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True."""
        return True

    def begin_future(self) -> None:
        """The future is done."""
        self.complete(None)


class Unwaited(dict[int, "EngineWork"]):
    """Works that no thread has waited for, by handle: C++ code of torch may still hold them.

    It holds the C++ half of a work alone, as ``DistributedDataParallel.join`` does, and half a work
    cannot be waited for.
    """

    def add(self, handle: int, work: EngineWork) -> None:
        """Keep the work, and not many that are over."""
        self[handle] = work
        if len(self) > _MOST_UNWAITED:
            oldest = next(iter(self.values()))
            oldest.is_completed()  # and removes itself then


class EngineWork(HorovodWork):
    """An operation of the engine.

    Args:
        members: of its group.
        handle: the engine's.
        title: what it is, for messages.
        timeout_s: how long ``wait`` waits, unless it is told.
        tensors: those with the result.
        kept: tensors that the engine reads or writes.
        finish: called once with the outputs that the engine has allocated.
        source: the rank that a message comes from.
    """

    _is_over = False
    _over: threading.Event | None = None  # of a work with a future

    def __init__(
        self,
        members: Members,
        handle: int,
        title: str,
        timeout_s: float,
        tensors: list[torch.Tensor],
        kept: Any = None,
        finish: Finish | None = None,
        source: int = -1,
    ) -> None:
        super().__init__(tensors, source)
        self._members = members
        self._handle = handle
        self._title = title
        self._timeout_s = timeout_s
        self._kept = kept
        self._finish = finish
        self._lock = threading.Lock()
        members.unwaited.add(handle, self)

    def is_completed(self) -> bool:
        """Whether it is over; never blocks for long."""
        if not self._is_over and self._over is None and self._members.engine.poll(self._handle):
            self._end_within(0.0)
        if self._is_over:
            self._members.unwaited.pop(self._handle, None)
        return self._is_over

    def wait(self, timeout: timedelta | None = None) -> bool:
        """See ``HorovodWork.wait``."""
        members = self._members
        if not self._is_over:
            limit_s = timeout.total_seconds() if timeout else self._timeout_s
            if not self._end_within(limit_s):
                raise self.too_late(limit_s)
        members.unwaited.pop(self._handle, None)
        if self.error is not None:
            raise self.error
        return True

    def begin_future(self) -> None:
        """Let the result be taken by ``completions``, and the time by ``deadlines``."""
        assert self._future is not None
        with self._lock:
            if self._is_over:
                self.complete(self.error)
                return
            if self.is_waited_for:
                return
            self._over = threading.Event()
        expire = functools.partial(self._expire, self._future)
        deadlines.add(self, self._timeout_s, expire)
        completions.add(self._members.engine, self._handle, self.end)

    def missing_ranks(self) -> list[int]:
        """The group's ranks that have not started it, as far as is known here."""
        members = self._members
        return [members.ranks.index(rank) for rank in members.missing_ranks(self._handle)]

    def too_late(self, limit_s: float) -> DistBackendError:
        """The error of a wait that took longer than its limit."""
        members = self._members
        place = f"process group '{members.title}', rank {members.rank}"
        title = self._title if self.source >= 0 else members.engine.title_of(self._handle)
        return too_late(place, limit_s, title or self._title, members.late(self._handle))

    def end(self, outputs: list[_native.Output], error: BaseException | None) -> None:
        """The engine has ended it."""
        if error is None and self._finish is not None:
            try:
                self._finish(outputs)
            except (ValueError, RuntimeError) as caught:
                error = caught
        self._kept = self._finish = None
        self.error = error
        self._is_over = True
        is_in_time = True  # otherwise its future has that error
        if self._over is not None:
            is_in_time = deadlines.remove(self)
            self._members.unwaited.pop(self._handle, None)
            self._over.set()
        if self._future is not None and is_in_time:
            self.complete(error)

    def _expire(self, future: Future[Any]) -> None:
        """No thread waits, and the group's time is over."""
        future.set_exception(self.too_late(self._timeout_s))

    def _end_within(self, limit_s: float) -> bool:
        """Whether it is over, after a wait of ``limit_s`` at most."""
        with self._lock:
            if self._over is None and not self._is_over:
                try:
                    outputs = self._members.engine.wait_for(self._handle, limit_s)
                except (ValueError, RuntimeError) as error:
                    self.end([], error)
                else:
                    if outputs is not None:
                        self.end(outputs, None)
        return self._is_over if self._over is None else self._over.wait(limit_s)


def end_now(
    members: Members,
    handle: int,
    title: str,
    timeout_s: float,
    tensors: list[torch.Tensor],
    kept: Any,
    finish: Finish | None,
    source: int = -1,
) -> None:
    """Wait at once for an operation; see ``EngineWork``, of which this is the faster form."""
    engine = members.engine
    arguments = (members, handle, title, timeout_s, tensors, kept, finish, source)
    try:
        outputs = engine.wait_for(handle, timeout_s)
    except BaseException:
        if engine.contains(handle):  # interrupted: it goes on, and its tensors are kept
            EngineWork(*arguments)
        raise
    if outputs is None:
        raise EngineWork(*arguments).too_late(timeout_s)
    if finish is not None:
        finish(outputs)


def too_late(place: str, limit_s: float, title: str, why: str) -> DistBackendError:
    """The error of a wait that took longer than its limit. ``place``: the group and rank."""
    return DistBackendError(f"{place}: Timed out waiting {limit_s * 1000:.0f}ms for {title}: {why}")
