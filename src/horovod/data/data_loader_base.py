"""A data loader, and a mixin that runs one ahead of its consumer.

    class Loader(AsyncDataLoaderMixin, MyLoader): ...

``MyLoader`` says what the batches are; the mixin reads them on a thread of its own, one per epoch,
which hands them over through a short queue. The thread ends with its epoch, with the loop that
reads it, or with ``close_async_loader``, whichever comes first.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]

# A thread that is blocked inside the loader's own code cannot be ended; it is left behind then.
_PATIENCE_S = 10.0


class BaseDataLoader(ABC):
    """Batches of one epoch per iteration. Subclasses say how many and which."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of batches in an epoch."""

    @abstractmethod
    def _iterate(self) -> Iterator[Any]:
        """The batches of one epoch."""

    def _process_batch(self, batch: Any) -> Any:
        """What the consumer gets for ``batch``; runs on the consumer's thread."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Reads up to ``async_loader_queue_size`` batches ahead; stands before the loader in the bases.

    ``_iterate`` runs on a background thread, ``_process_batch`` on the consumer's. An exception in
    ``_iterate`` is raised from the loop that reads, after the batches before it. Starting a new
    iteration ends the one before. With a size of 0 there is no thread.
    ``debug_data_loader`` writes what the thread does to stderr.
    """

    def __init__(
        self,
        async_loader_queue_size: int = 64,
        debug_data_loader: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._epoch: _Epoch | None = None
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size <= 0:
            return super().__iter__()  # type: ignore[misc,no-any-return]
        self.close_async_loader()
        self._epoch = _Epoch(self._iterate, self.async_loader_queue_size, self._say)  # type: ignore[attr-defined]
        return self._processed(self._epoch)

    def close_async_loader(self) -> None:
        """End the background thread, if there is one, and forget what it has read.

        Blocks until the thread has ended: until the batch that it is reading is there, and for 10 s
        at most. A loop that is still reading ends with the batches it has.
        """
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.close()

    def _processed(self, epoch: _Epoch) -> Iterator[Any]:
        try:
            for batch in epoch.batches():
                yield self._process_batch(batch)  # type: ignore[attr-defined]
        finally:
            epoch.close()

    def _say(self, text: str) -> None:
        if self.debug_data_loader:
            sys.stderr.write(f"horovod data loader: {text}\n")


class _Epoch:
    """One pass: a thread that puts batches into a queue until told to stop."""

    def __init__(
        self, iterate: Callable[[], Iterator[Any]], limit: int, say: Callable[[str], None]
    ) -> None:
        self._iterate = iterate
        self._limit = limit
        self._say = say
        self._changed = threading.Condition()  # guards all below
        self._queue: deque[Any] = deque()
        self._error: BaseException | None = None
        self._is_read = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, name="horovod-data", daemon=True)
        self._thread.start()

    def batches(self) -> Iterator[Any]:
        """The batches in order, then the thread's exception if there was one."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_read or self._is_closed)
                if not self._queue:
                    break
                batch = self._queue.popleft()
                self._changed.notify_all()
            yield batch
        if self._error is not None and not self._is_closed:
            raise self._error

    def close(self) -> None:
        """Stop the thread and wait for it; the queue is empty afterwards."""
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE_S)

    def _read(self) -> None:
        count = 0
        self._say("thread started")
        try:
            for batch in self._iterate():
                if not self._put(batch):
                    break
                count += 1
        except BaseException as error:  # whatever it is, the consumer is the one to see it
            self._error = error
        with self._changed:
            self._is_read = True
            self._changed.notify_all()
        self._say(f"thread ended after {count} batches")

    def _put(self, batch: Any) -> bool:
        """Add ``batch`` once there is room; False if nobody wants it any more."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._queue) < self._limit or self._is_closed)
            if not self._is_closed:
                self._queue.append(batch)
                self._changed.notify_all()
            return not self._is_closed
