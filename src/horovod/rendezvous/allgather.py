"""An all-gather through a store: every rank gives a value, and all get all values or one error.

The first rank collects the values and publishes them. A rank that fails posts the reason instead,
which is then the error of all ranks. Every value carries a proof of the job's secret over the key
where it belongs, so other writers to the store are harmless.
"""

from __future__ import annotations

import contextlib
import math
import reprlib
import struct
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from horovod.core.base.checked import BadMessageError, printable
from horovod.errors import InitError
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.membership import failure_from_bytes, failure_to_bytes
from horovod.rendezvous.store.client import Store
from horovod.rendezvous.store.proven_values import ProvenValues, UnprovenError

_ROLE = b"horovod allgather"
_GRACE_S = 5.0  # after the first rank's own deadline: only a stopped rank is that late
_SLICE_S = 0.25  # within which the first rank sees a failure of another one
_VALUE, _FAILURE = b"+", b"-"
_SECONDS, _LENGTH = struct.Struct("!d"), struct.Struct("!I")
_MOST_BYTES = 1 << 30  # of all values of all ranks
_MOST_SECONDS = 1e9

_Value = TypeVar("_Value")


def packed(values: Sequence[bytes]) -> bytes:
    """All values in few bytes: most of what one rank says another one says, too."""
    return zlib.compress(b"".join(_LENGTH.pack(len(value)) + value for value in values), 1)


def unpacked(data: bytes) -> list[bytes]:
    """The inverse of ``packed``. ``ValueError`` or ``zlib.error`` for anything else."""
    stream = zlib.decompressobj()
    whole = stream.decompress(data, _MOST_BYTES)
    if not stream.eof or stream.unused_data:
        raise ValueError(f"they do not end after {len(whole)} bytes")
    values, start = [], 0
    while start < len(whole):
        if len(whole) - start < _LENGTH.size:
            raise ValueError(f"{len(whole) - start} bytes are left, no length")
        begin = start + _LENGTH.size
        start = begin + _LENGTH.unpack_from(whole, start)[0]
        if start > len(whole):
            raise ValueError(f"a value ends at {start} of {len(whole)} bytes")
        values.append(whole[begin:start])
    return values


def decode_all(
    ranks: Sequence[int], values: Sequence[bytes], decode: Callable[[bytes], _Value]
) -> list[_Value]:
    """``decode`` of each rank's value.

    Raises:
        InitError: the value of a rank is malformed; the same on all ranks, since all decode the
            same values.
    """
    return [decode_of(rank, value, decode) for rank, value in zip(ranks, values, strict=True)]


def decode_of(rank: int, value: bytes, decode: Callable[[bytes], _Value]) -> _Value:
    """``decode`` of the value of one rank.

    Raises:
        InitError: the value is malformed.
    """
    try:
        return decode(value)
    except BadMessageError as error:
        raise InitError(f"init: {error.of(f'rank {rank}')}", ranks=[rank]) from None


@dataclass
class StoreAllgather:
    """One all-gather among ``ranks`` under ``key``, which is used once.

    The first rank enforces ``deadline``. With ``is_bootstrap`` the others take over its remaining
    time as soon as it has arrived. On the first rank ``check`` says what is wrong with the value of
    another rank when it arrives. With ``is_bootstrap`` ``check_earlier`` says what is wrong with
    the value that was posted as this rank before.
    """

    store: Store
    secret: bytes = field(repr=False)
    key: str
    rank: int
    ranks: Sequence[int]
    deadline: Deadline
    is_bootstrap: bool = field(default=False, kw_only=True)
    check: Callable[[int, bytes], InitError | None] | None = field(default=None, kw_only=True)
    check_earlier: Callable[[bytes], InitError | None] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._proven = ProvenValues(self.store, self.secret, _ROLE)
        self._values: dict[int, bytes] = {}
        self._is_published = False
        self._refused: set[str] = set()
        self._unsent: tuple[str, bytes] | None = None  # goes with the next request

    @property
    def _is_first(self) -> bool:
        return self.rank == self.ranks[0]

    def own_value(self) -> bytes | None:
        """The value that was last posted as this rank, maybe by another process; None if none."""
        return self._take(str(self.rank), 0.0)

    def post(self, value: bytes) -> None:
        """Give ``value``."""
        if self._is_first:
            self._values[self.rank] = value
            if self.is_bootstrap:
                self._put("here", _SECONDS.pack(self.deadline.remaining_s()))
        self._put(str(self.rank), value)

    def begin(self, value: bytes) -> None:
        """As ``post``; but the value may leave with the next ``poll``, which saves a round trip."""
        if self._is_first:
            self.post(value)
        else:
            self._unsent = f"{self.key}/{self.rank}", value

    def fail(self, error: InitError) -> None:
        """Make the other ranks raise ``error``; does nothing after the end of the all-gather."""
        if self._is_published:
            return
        reason = failure_to_bytes(error)
        # Without the store the others cannot be told; the caller raises the first error.
        with contextlib.suppress(InitError):
            if self._is_first:
                self._publish(_FAILURE + reason)
            else:
                self._put("failed", reason)

    def exchange(self, value: bytes) -> list[bytes]:
        """Give ``value`` and wait for all values, in the order of ``ranks``.

        Raises:
            InitError: a rank failed or did not arrive before the deadline; the same on all ranks.
        """
        if not self.is_bootstrap:
            self.begin(value)
        elif self._is_first:
            self._refuse_earlier(self.own_value())
            self.post(value)
        else:
            return self._find_first(value) or self.wait()
        return self.wait()

    def wait(self) -> list[bytes]:
        """Wait for all values after ``post`` or ``begin``; raises as ``exchange``."""
        while True:
            # Only the first rank looks for failures, and ends the wait of all.
            found = self.poll(_SLICE_S if self._is_first else self.deadline.remaining_s())
            if found is not None:
                return found

    def poll(self, wait_s: float) -> list[bytes] | None:
        """All values, or None if that takes longer than ``wait_s``; raises as ``exchange``.

        The first rank must call it repeatedly, since its calls collect and publish the values.
        """
        return self._collect(wait_s) if self._is_first else self._listen(wait_s)

    def _problem_of_earlier(self, value: bytes | None) -> InitError | None:
        if value is None or self.check_earlier is None:
            return None
        return self.check_earlier(value)

    def _refuse_earlier(self, value: bytes | None) -> None:
        if (problem := self._problem_of_earlier(value)) is not None:
            raise problem

    def _find_first(self, value: bytes) -> list[bytes] | None:
        """Post the value, and wait for all values; take over the time that the first rank has.

        None: they have not come in this rank's time.
        """
        own, here, everything = (f"{self.key}/{name}" for name in (self.rank, "here", "all"))
        found_at = 0.0

        def should_stop(number: int, found: bytes | None) -> bool:
            nonlocal found_at
            found_at = time.monotonic()
            return number == 0 and self._problem_of_earlier(found) is not None

        wanted = [(here, 0.0), (everything, self.deadline.remaining_s())]
        try:
            earlier, *found = self._proven.swap_and_take(own, value, wanted, should_stop)
        except UnprovenError:
            self._refuse("here", here)
        self._refuse_earlier(earlier)
        seconds, answer = found
        values = None if answer is None else self._published(answer)
        if seconds is None:
            seconds, found_at = self._take("here", 0.0), time.monotonic()
        if seconds is None:
            raise self._absent_first("did not arrive")
        self.deadline = Deadline(self._seconds_in(seconds))
        self.deadline.at = found_at + self.deadline.timeout_s
        return values

    def _seconds_in(self, value: bytes) -> float:
        (seconds,) = _SECONDS.unpack(value) if len(value) == _SECONDS.size else (math.nan,)
        if not 0.0 <= seconds <= _MOST_SECONDS:
            raise self._bad("here", "seconds", value, "seconds that are left")
        return float(seconds)

    def _bad(self, name: str, field: str, found: object, expected: str) -> InitError:
        text = printable(reprlib.repr(found))
        first = f"rank {self.ranks[0]}"
        error = BadMessageError(name, field, text, expected, first)
        return InitError(f"init: {error}", ranks=self.ranks[:1])

    def _absent_first(self, what: str) -> InitError:
        return self.deadline.missed_by(self.ranks[:1], len(self.ranks), what)

    def _listen(self, wait_s: float) -> list[bytes] | None:
        answer = self._take("all", wait_s)
        if answer is None:
            if self.deadline.has_passed and self._take("all", _GRACE_S) is None:
                raise self._absent_first("stopped answering")
            return None
        return self._published(answer)

    def _published(self, answer: bytes) -> list[bytes]:
        """The values that the first rank has published; raises as ``exchange``."""
        self._is_published = True
        if answer[:1] == _FAILURE:
            raise failure_from_bytes(answer[1:], f"rank {self.ranks[0]}")
        return self._values_in(answer)

    def _values_in(self, answer: bytes) -> list[bytes]:
        try:
            values = unpacked(answer[1:])
        except (ValueError, zlib.error) as error:
            raise self._bad("all", "values", str(error), "a list of values") from None
        if answer[:1] != _VALUE or len(values) != len(self.ranks):
            found = f"{len(values)} behind {answer[:1]!r}"
            raise self._bad("all", "values", found, f"{len(self.ranks)} behind {_VALUE!r}")
        return values

    def _collect(self, wait_s: float) -> list[bytes] | None:
        until = Deadline(wait_s)
        for rank in self.ranks:
            if rank not in self._values:
                value = self._take(str(rank), until.remaining_s())
                if value is not None:
                    self._note(rank, value)
                elif not self.is_bootstrap and not self.deadline.has_passed:
                    break  # the values of later ranks can be collected later
        self._check_failed()
        if len(self._values) == len(self.ranks):
            values = [self._values[rank] for rank in self.ranks]
            self._publish(_VALUE + packed(values))
            return values
        if self.deadline.has_passed:
            missing = set(self.ranks) - set(self._values)
            late = "did not arrive" if self.is_bootstrap else "stopped answering"
            self._end(self.deadline.missed_by(missing, len(self.ranks), late))
        return None

    def _note(self, rank: int, value: bytes) -> None:
        problem = self.check(rank, value) if self.check else None
        if problem is not None:
            self._end(problem)
        self._values[rank] = value

    def _check_failed(self) -> None:
        reason = self._take("failed", 0.0)
        if reason is not None:
            self._end(failure_from_bytes(reason, "another rank"))

    def _end(self, error: InitError) -> None:
        self.fail(error)
        raise error

    def _publish(self, answer: bytes) -> None:
        self._is_published = True
        self._put("all", answer)

    def _put(self, name: str, value: bytes) -> None:
        self._proven.put(f"{self.key}/{name}", value)

    def _take(self, name: str, wait_s: float) -> bytes | None:
        """The value under ``name`` if it comes in time. A value without a proof is ignored."""
        key = f"{self.key}/{name}"
        own, self._unsent = self._unsent, None
        try:
            return self._proven.take(key, wait_s, own)
        except UnprovenError:
            self._refuse(name, key)
        time.sleep(min(wait_s, 0.01))  # until a rank of this job writes, the store answers at once
        return None

    def _refuse(self, name: str, key: str) -> None:
        if name in ("here", "all"):
            raise InitError(
                f"init: rank {self.ranks[0]} does not know the job's secret that this process has "
                "(_HOROVOD_SECRET_KEY)",
                ranks=self.ranks[:1],
            )
        if name not in self._refused:
            self._refused.add(name)
            sys.stderr.write(
                f"horovod: init: ignored a message for {key!r}: its sender does not know the job's "
                "secret\n"
            )
