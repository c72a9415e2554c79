"""What a forked child keeps of its parent's world: numbers, and the text that refuses the rest.

Data loaders fork workers, which ask for their rank to choose their part of the data. Connections,
shared memory and the engine's threads are the parent's.
"""

from __future__ import annotations

from typing import NamedTuple

from horovod.rendezvous.bootstrap import ProcessInfo


class Parent(NamedTuple):
    """The process that this one was forked from, directly or not, as it was at the fork."""

    identity: ProcessInfo
    pid: int
    mpi_enabled: bool

    @property
    def refusal(self) -> str:
        """Why this process cannot do what only its parent can."""
        return (
            f"this process was forked from rank {self.identity.rank} (pid {self.pid}), which alone "
            "can use Horovod's collectives; hvd.rank() and hvd.size() work here"
        )
