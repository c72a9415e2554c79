"""Passes packets from one virtual network card to another, late: see ``long_cable.py``.

    python cable_process.py NEAR FAR DELAY_S LOSS MBIT_PER_S SEED

Makes the cards NEAR and FAR, prints "ready", and works until the end of standard input, with which
the cards end. It stands in for the kernel's netem.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

_MOST_BYTES = 65536  # of a packet
_BATCH = 64  # packets that are read before others are written
_LONGEST_QUEUE_S = 0.05
_BEFORE_OTHERS = -20  # netem would work in the kernel
_TUNSETIFF = 0x400454CA
_TAP, _NO_HEADER = 0x0002, 0x1000


class _Direction:
    """The packets that are on their way from ``source`` to ``target``."""

    def __init__(
        self, source: int, target: int, delay_s: float, loss: float, mbit_per_s: float, seed: int
    ) -> None:
        self.source = source
        self._target = target
        self._delay_s = delay_s
        self._loss = loss
        self._s_per_byte = 8e-6 / mbit_per_s if mbit_per_s else 0.0
        self._chance = random.Random(seed)
        self._packets: deque[tuple[float, bytes]] = deque()
        self._is_free_at = 0.0

    @property
    def next_at(self) -> float:
        """When the first packet is there."""
        return self._packets[0][0] if self._packets else float("inf")

    def take(self, now: float) -> None:
        """Take packets that have come."""
        for _ in range(_BATCH):
            try:
                packet = os.read(self.source, _MOST_BYTES)
            except BlockingIOError:
                return
            begin = max(now, self._is_free_at)
            if self._chance.random() < self._loss or begin - now > _LONGEST_QUEUE_S:
                continue
            self._is_free_at = begin + len(packet) * self._s_per_byte
            self._packets.append((self._is_free_at + self._delay_s, packet))

    def give(self, now: float) -> None:
        """Pass on what is there by now. A card that is not up gets nothing."""
        while self.next_at <= now:
            try:
                os.write(self._target, self._packets.popleft()[1])
            except OSError as error:
                if error.errno != errno.EIO:
                    raise


def _open_card(name: str) -> int:
    card = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(card, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP | _NO_HEADER))
    return card


def main() -> None:
    near, far = map(_open_card, sys.argv[1:3])
    delay_s, loss, mbit_per_s = map(float, sys.argv[3:6])
    seed = int(sys.argv[6])
    with contextlib.suppress(PermissionError):
        os.nice(_BEFORE_OTHERS)
    out = _Direction(near, far, delay_s, loss, mbit_per_s, seed)
    back = _Direction(far, near, delay_s, loss, mbit_per_s, seed + 1)
    print("ready", flush=True)
    while True:
        timeout_s = max(0.0, min(out.next_at, back.next_at) - time.monotonic())
        wait_s = None if timeout_s == float("inf") else timeout_s
        readable, _, _ = select.select([sys.stdin, near, far], [], [], wait_s)
        if sys.stdin in readable:
            return
        for direction in (out, back):
            if direction.source in readable:
                direction.take(time.monotonic())
            direction.give(time.monotonic())


if __name__ == "__main__":
    main()
