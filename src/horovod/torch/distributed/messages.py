"""Messages between two ranks of a process group: send, recv, and recv from any rank.

A message is a broadcast in the process set of the two ranks, which the sender is the root of. So it
waits for its receiver, and everything that holds for collectives holds for it: shapes and dtypes
are checked, a lost rank ends it, and recordings show it by its name. The name is the group's, the
two ranks', the tag's and a running number, from which the ranks know which send belongs to which
recv.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
import weakref
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING

import torch
import torch.distributed

from horovod import _native
from horovod.core.base.ranks import ranks_text
from horovod.core.operations import Intent, Kind, Sum
from horovod.errors import ShutdownError
from horovod.torch.adapter import adapter
from horovod.torch.distributed.tensors import Landing, is_plain
from horovod.torch.distributed.work import DoneWork, EngineWork, HorovodWork, end_now, too_late

if TYPE_CHECKING:
    from horovod.torch.distributed.members import Members

# The names of a channel come again after so many messages: the engine remembers them.
_NAMES = 64
# Looking up an enum's member takes half as long as making a call.
_COMPUTE, _WAIT = Intent.COMPUTE, Intent.WAIT
# They wait for their message at once, and nothing else gets its work.
_BLOCKING = {
    inspect.unwrap(function).__code__
    for function in (torch.distributed.send, torch.distributed.recv)
}
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 1e-3


def is_blocking_call() -> bool:
    """Whether ``send`` or ``recv`` of torch calls the caller, perhaps by ``isend`` or ``irecv``."""
    try:
        frame: FrameType | None = sys._getframe(2)
    except ValueError:  # C++ code, on a thread without any Python code
        return False
    for _ in range(2):
        if frame is not None and frame.f_code in _BLOCKING:
            return True
        frame = frame and frame.f_back
    return False


class Messages:
    """The messages of one group."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.looking = threading.Lock()  # held from finding a sender until its message is received
        self._channels: dict[tuple[int, int, int], _Channel] = {}

    def send(
        self, tensor: torch.Tensor, to: int, tag: int, timeout_s: float, is_blocking: bool = False
    ) -> HorovodWork:
        """Start sending to the group's rank ``to``. ``is_blocking``: the caller will only wait."""
        return self._channel(self.members.rank, to, tag).start(tensor, timeout_s, is_blocking)

    def receive(
        self,
        tensor: torch.Tensor,
        source: int,
        tag: int,
        timeout_s: float,
        is_blocking: bool = False,
    ) -> HorovodWork:
        """Start receiving from the group's rank ``source``; see ``send``."""
        return self._channel(source, self.members.rank, tag).start(tensor, timeout_s, is_blocking)

    def receive_any(self, tensor: torch.Tensor, tag: int, timeout_s: float) -> HorovodWork:
        """Receive from the rank that is found to send first.

        Raises:
            ValueError: the group has no other rank.
        """
        if len(self.members.ranks) == 1:
            raise ValueError(
                f"recv (any source, tag {tag}): this rank is the only one of process group "
                f"'{self.members.title}'"
            )
        return _AnySource(self, tensor, tag, timeout_s)

    def find_sender(self, tag: int) -> int | None:
        """A rank that has started a send with this tag which this rank does not receive yet.

        Raises:
            RuntimeError: the group or the world has ended.
        """
        members = self.members
        if members.has_ended:
            raise ShutdownError(
                f"recv (any source, tag {tag}): rank {members.rank} has left process group "
                f"'{members.title}'"
            )
        members.engine.raise_if_over()
        peers = members.known_peers()
        for rank, peer in peers.items():
            if peer is None or peer.number is None:
                continue
            channel = self._channel(rank, members.rank, tag)
            if members.engine.is_awaited(peer.number, channel.next_name()):
                return rank
        if None in peers.values():
            members.calls.hear()
        return None

    def why_no_sender(self) -> str:
        """Why ``find_sender`` may find none, for messages."""
        peers, calls = self.members.known_peers(), self.members.calls
        reasons = ["no rank has sent such a message"]
        strangers = [rank for rank, peer in peers.items() if peer is None]
        if strangers:
            reasons.append(f"{ranks_text(strangers)} did not connect with this one")
        errors = [calls.error, *(peer.error for peer in peers.values() if peer is not None)]
        return "; ".join([*reasons, *(str(error) for error in errors if error is not None)])

    def _channel(self, source: int, to: int, tag: int) -> _Channel:
        found = self._channels.get((source, to, tag))
        if found is None:
            found = self._channels[source, to, tag] = _Channel(self.members, source, to, tag)
        return found


class _Channel:
    """The messages from one rank of a group to another with one tag.

    Raises:
        ValueError: the group has no such rank, or it is this one.
    """

    def __init__(self, members: Members, source: int, to: int, tag: int) -> None:
        title, peer = ("send", to) if source == members.rank else ("recv", source)
        if source == to or not 0 <= peer < len(members.ranks):
            raise ValueError(
                f"{title}: rank {peer}: expected another rank than {members.rank}, from 0 to "
                f"{len(members.ranks) - 1}"
            )
        self._members = members
        self._source = source
        self._is_source = source == members.rank
        self._peer = members.peer(peer)
        self._title = f"{title} (rank {source} to {to}, tag {tag})"
        self._prefix = f"send.{members.title}.{source}-{to}.tag{tag}"
        self._names: list[str] = []
        self._count = 0
        # A work that is gone is over.
        self._latest: dict[int, weakref.ref[HorovodWork]] = {}
        self._operation: _native.Operation | None = None

    def next_name(self) -> str:
        """The engine's name of the next message."""
        position = self._count % _NAMES
        if position == len(self._names):
            self._names.append(f"{self._prefix}.{position}")
        return self._names[position]

    def start(self, tensor: torch.Tensor, timeout_s: float, is_blocking: bool) -> HorovodWork:
        """Start the next message; a blocking one ends here, without a background thread."""
        name, position = self.next_name(), self._count % _NAMES
        self._count += 1
        earlier = self._latest.pop(position)() if position in self._latest else None
        if earlier is not None and not earlier.is_completed():
            earlier.wait()
        if self._operation is not None and is_blocking and is_plain(tensor):
            self._run(self._operation, tensor, name, timeout_s)
            return _DONE
        if self._operation is not None:
            work: HorovodWork = self._submit(self._operation, tensor, name, timeout_s)
        else:
            work = self._start_first(tensor, name, timeout_s)
        self._latest[position] = weakref.ref(work)
        return work

    def _start_first(self, tensor: torch.Tensor, name: str, timeout_s: float) -> HorovodWork:
        """Start a message when the ranks are connected."""
        members, peer = self._members, self._peer
        if peer.number is not None:
            return self._submit(self._open(peer.number), tensor, name, timeout_s)
        later = _Later(members, self._title, tensor, timeout_s, self._source)

        def start(number: int) -> None:
            later.begin(self._submit(self._open(number), tensor, name, timeout_s))

        peer.when_connected(start, later.fail)
        return later

    def _open(self, number: int) -> _native.Operation:
        arguments = (Kind.BROADCAST, Sum, self._members.ranks[self._source], 1.0, 1.0, number)
        self._operation = _native.Operation(*arguments, is_flat=True)
        return self._operation

    def _run(
        self, operation: _native.Operation, tensor: torch.Tensor, name: str, timeout_s: float
    ) -> None:
        members = self._members
        handle = adapter.submit(members.engine, operation, name, tensor, tensor, _WAIT)
        end_now(members, handle, self._title, timeout_s, [tensor], tensor, None, self._source)

    def _submit(
        self, operation: _native.Operation, tensor: torch.Tensor, name: str, timeout_s: float
    ) -> HorovodWork:
        members, memory, finish = self._members, tensor, None
        if not is_plain(tensor):
            landing = Landing(tensor, self._title)
            memory, finish = landing.memory, None if self._is_source else landing.finish
        handle = adapter.submit(members.engine, operation, name, memory, memory, _COMPUTE)
        return EngineWork(
            members, handle, self._title, timeout_s, [tensor], memory, finish, self._source
        )


# Of messages that nothing needs to know more of.
_DONE = DoneWork([])


class _Later(HorovodWork):
    """A message whose operation starts later: any thread calls ``begin`` or ``fail``, once."""

    def __init__(
        self, members: Members, title: str, tensor: torch.Tensor, timeout_s: float, source: int
    ) -> None:
        super().__init__([tensor], source)
        self._place = f"process group '{members.title}', rank {members.rank}"
        self.title = title
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._begun = threading.Event()
        self._work: HorovodWork | None = None

    def begin(self, work: HorovodWork) -> None:
        """The operation has started."""
        with self._lock:
            self._work = work
            has_future = self._future is not None
        self._begun.set()
        if has_future:
            self._follow(work)

    def fail(self, error: Exception) -> None:
        """The operation cannot start."""
        self.complete(error)
        self._begun.set()

    def is_completed(self) -> bool:
        """Whether it is over; never blocks for long."""
        if self._work is not None and self._work.is_completed():
            self.error = self._work.exception()
            return True
        return self.error is not None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """See ``HorovodWork.wait``."""
        limit_s = timeout.total_seconds() if timeout else self.timeout_s
        until = time.monotonic() + limit_s
        if not self._begun.wait(limit_s):
            raise self.too_late(limit_s)
        if self.error is not None:
            raise self.error
        assert self._work is not None
        left_s = max(until - time.monotonic(), 0.001)
        return self._work.wait(timedelta(seconds=min(left_s, 1e8)))

    def too_late(self, limit_s: float) -> Exception:
        """The error of a wait that took too long."""
        return too_late(self._place, limit_s, self.title, "the ranks are not connected yet")

    def begin_future(self) -> None:
        """Follow the operation, once it has started."""
        with self._lock:
            work = self._work
        if work is not None:
            self._follow(work)
        elif self.error is not None:
            self.complete(self.error)

    def _follow(self, work: HorovodWork) -> None:
        work.get_future().then(lambda _: self.complete(work.exception()))


class _AnySource(_Later):
    """A message from any rank: a thread that waits for it looks who sends."""

    def __init__(
        self, messages: Messages, tensor: torch.Tensor, tag: int, timeout_s: float
    ) -> None:
        title = f"recv (any source, tag {tag})"
        super().__init__(messages.members, title, tensor, timeout_s, -1)
        self._messages = messages
        self._tag = tag

    def is_completed(self) -> bool:
        """Whether it is over; never blocks for long."""
        self._look()
        return super().is_completed()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """See ``HorovodWork.wait``."""
        limit_s = timeout.total_seconds() if timeout else self.timeout_s
        until = time.monotonic() + limit_s
        pause_s = _SHORTEST_PAUSE_S
        while not self._look():
            if time.monotonic() > until:
                raise self.too_late(limit_s)
            time.sleep(pause_s)
            pause_s = min(1.2 * pause_s, _LONGEST_PAUSE_S)
        return super().wait(timeout)

    def too_late(self, limit_s: float) -> Exception:
        """The error of a wait that took too long."""
        return too_late(self._place, limit_s, self.title, self._messages.why_no_sender())

    def begin_future(self) -> None:
        """Look for a sender on a thread of its own."""
        super().begin_future()
        if self._work is None:
            threading.Thread(target=self._wait_alone, daemon=True).start()

    def _wait_alone(self) -> None:
        try:
            self.wait()
        except (ValueError, RuntimeError) as error:
            if self._work is None:
                self.fail(error)

    def _look(self) -> bool:
        with self._messages.looking:
            if self._work is None:
                sender = self._messages.find_sender(self._tag)
                if sender is None:
                    return False
                self.source = sender
                [tensor] = self.tensors
                self.begin(self._messages.receive(tensor, sender, self._tag, self.timeout_s))
        return True
