"""Connections stall, are reset and dialled again: in the end both ranks have the same ones."""

from __future__ import annotations

import errno
import random
import socket
import struct
import time
from collections import defaultdict

import pytest
from loopback import new_loopback
from worlds import SECRET

from horovod.rendezvous.base.interfaces import Address, Route
from horovod.rendezvous.links import dialing
from horovod.rendezvous.links.connector import Connector, Stream
from horovod.rendezvous.links.dialing import PeerDial, RankDialer
from horovod.rendezvous.links.listening import LinkListener
from horovod.rendezvous.links.plan import Link, Purpose

CONTEXT = b"c" * 32
MINE = [Link(Purpose.DATA, 0, channel, 0) for channel in range(3)]  # as rank 1 sees them
THEIRS = [link._replace(host=1, peer=1) for link in MINE]
_LONGEST_STALL_S = 0.03


class BadNetwork(Connector):
    """Some connections deliver nothing for a while, others are reset."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._stalls: defaultdict[Stream, float] = defaultdict(float)
        self.is_good = False

    def _read(self, stream: Stream) -> None:
        if self.is_good:
            super()._read(stream)
            return
        if time.monotonic() < self._stalls[stream]:
            return
        fate = self._chance.random()
        if fate < 0.3:
            stall_s = _LONGEST_STALL_S * self._chance.random() ** 2
            self._stalls[stream] = time.monotonic() + stall_s
        elif fate < 0.4:
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        else:
            super()._read(stream)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "_ANSWER_TIMEOUT_S", 0.01)
    for name in ("_STAGGER_S", "_CONTACT_S", "_LONGEST_PAUSE_S"):
        monkeypatch.setattr(dialing, name, 0.001)
    for name in ("_TRIES_WHEN_CLOSED", "_TRIES_WHEN_SILENT"):
        monkeypatch.setattr(dialing, name, 10_000)


@pytest.mark.parametrize("seed", range(20))
def test_both_ranks_have_the_same_connections(nothing_leaks: None, seed: int) -> None:
    chance = random.Random(seed)
    here, there = BadNetwork(chance), BadNetwork(chance)
    addresses = [Address(new_loopback(), 8, "lo") for _ in range(1 + seed % 3)]
    listener = LinkListener(here, 0, SECRET, addresses)
    listener.expect(THEIRS, CONTEXT, {"127.0.0.1"})
    routes = [Route(each.address.host, each.port) for each in listener.listening]
    dialled = PeerDial(RankDialer(there, 1, SECRET, CONTEXT), MINE, routes)
    while not dialled.is_settled:
        if chance.random() < 0.8:
            here.step(0.001)
        if chance.random() < 0.8:
            dialled.advance()
            there.step(0.001)
    here.is_good = True
    for _ in range(30):  # what was still under way
        here.step(0.001)
    assert not dialled.missing, dialled.reasons
    assert listener.is_complete
    for mine, theirs in zip(MINE, THEIRS, strict=True):
        made, arrived = dialled.made[mine], listener.arrived[theirs]
        with made.socket, arrived.socket:
            assert arrived.socket.getpeername() == made.socket.getsockname()
            assert (made.keys.send, made.keys.receive) == (arrived.keys.receive, arrived.keys.send)
    listener.close()
    here.close()
    there.close()
