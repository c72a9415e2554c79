"""A data loader, and a mixin that runs one ahead of its consumer.

    class Loader(AsyncDataLoaderMixin, MyLoader): ...

``MyLoader`` makes the batches. The mixin reads them on a new thread for each epoch and passes them
through a short queue. The thread ends with its epoch, with the loop that reads it, or with
``close_async_loader``, whichever is first.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

# A thread that is blocked in the loader's code cannot be ended; after this time it is left alone.
_JOIN_TIMEOUT_S = 10.0


class BaseDataLoader(ABC):
    """Batches of one epoch per iteration. Subclasses define how many and which."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of batches in an epoch."""

    @abstractmethod
    def _iterate(self) -> Iterator[Any]:
        """The batches of one epoch."""

    def _process_batch(self, batch: Any) -> Any:
        """The batch that the consumer gets for ``batch``. Runs on the consumer's thread."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Reads up to ``async_loader_queue_size`` batches ahead; put it before the loader in the bases.

    ``_iterate`` runs on a background thread, ``_process_batch`` on the consumer's. The loop that
    reads raises an exception of ``_iterate`` after the batches before it. A new iteration ends the
    last one. With a size of 0 there is no thread. ``debug_data_loader`` logs to stderr.
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
        """End the background thread, if there is one, and drop the batches that it has read.

        Blocks until the thread has read its current batch, for 10 s at most. A loop that is still
        reading ends.
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
            self._thread.join(_JOIN_TIMEOUT_S)

    def _read(self) -> None:
        count = 0
        self._say("thread started")
        try:
            for batch in self._iterate():
                if not self._put(batch):
                    break
                count += 1
        except BaseException as error:  # the consumer raises it
            self._error = error
        with self._changed:
            self._is_read = True
            self._changed.notify_all()
        self._say(f"thread ended after {count} batches")

    def _put(self, batch: Any) -> bool:
        """Add ``batch`` when there is room; False if the epoch was closed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._queue) < self._limit or self._is_closed)
            if not self._is_closed:
                self._queue.append(batch)
                self._changed.notify_all()
            return not self._is_closed
