"""The connections of one attempt to link a rank with other hosts: dialled and incoming ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from horovod.rendezvous.links.connector import Connector
from horovod.rendezvous.links.dialing import PeerDial
from horovod.rendezvous.links.handshake import Connected
from horovod.rendezvous.links.listening import LinkListener
from horovod.rendezvous.links.plan import Link
from horovod.rendezvous.links.reachability import Report, Unreached

__all__ = ["LinkAttempt"]


class LinkAttempt:
    """Owns board, reception and all sockets made, until ``take_over``; ``close`` ends the rest."""

    def __init__(self, board: Connector, reception: LinkListener) -> None:
        self.board = board
        self.reception = reception
        self._current: list[PeerDial] = []
        self._made: dict[Link, Connected] = {}

    def dial(self, links: Sequence[Link], approach: Callable[[Sequence[Link]], PeerDial]) -> None:
        """Start to connect to the peers of these links, after what was dialled before."""
        self._collect()
        by_peer: dict[int, list[Link]] = {}
        for link in links:
            by_peer.setdefault(link.peer, []).append(link)
        self._current = [approach(group) for group in by_peer.values()]

    @property
    def is_settled(self) -> bool:
        """Whether nothing that was dialled is open any more."""
        return all(approach.is_settled for approach in self._current)

    @property
    def missing(self) -> list[Link]:
        """What was dialled last and not made."""
        return [link for approach in self._current for link in approach.missing]

    def step(self, wait_s: float) -> None:
        """Go on with everything; wait for the first thing that happens, or ``wait_s``."""
        waits = [wait_s]
        for approach in self._current:
            if not approach.is_settled:
                approach.advance()
                waits.append(approach.wait_s())
        self.board.step(min(waits))

    def give_up(self) -> None:
        """Dial no more."""
        for approach in self._current:
            approach.give_up()

    def report(self, rank: int) -> Report:
        """How the last dialling went."""
        report = Report(rank)
        for approach in self._current:
            if approach.missing:
                links = [(int(link.purpose), link.channel) for link in approach.missing]
                tries = [(str(route), why) for route, why in approach.reasons.items()]
                report.unreached[approach.peer] = Unreached(links, tries)
            else:
                report.reached.append(approach.peer)
        return report

    def take_over(self) -> dict[Link, Connected]:
        """All connections, which are the caller's now."""
        self._collect()
        made, self._made = self._made | self.reception.arrived, {}
        self.reception.arrived.clear()
        return made

    def close(self) -> None:
        """End everything that was not taken over."""
        self.give_up()
        self.reception.close()
        self.board.close()
        for connected in self.take_over().values():
            connected.socket.close()

    def _collect(self) -> None:
        for approach in self._current:
            self._made |= approach.made
            approach.made.clear()
        self._current = []
