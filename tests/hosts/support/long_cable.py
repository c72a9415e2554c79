"""A long cable between a host and its switch: packets arrive late, and some never.

Kernels without netem can do this, too: a process of the switch's network (``cable_process.py``)
passes every packet on. It ends with the process that has made the cable.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path

from network import Host, Network

__all__ = ["Distance", "has_tun", "long_cable"]

_SCRIPT = Path(__file__).with_name("cable_process.py")
_END_TIMEOUT_S = 120.0
_QUEUED_PACKETS = 10_000  # before the process looks at them


@dataclass(frozen=True)
class Distance:
    """What the cable does to packets, in each direction.

    Attributes:
        delay_s: how late they are; a round trip takes twice as long.
        loss: share of packets that vanish, at random, in [0, 1).
        mbit_per_s: how fast they leave the cable; 50 ms of packets may wait for that. 0: no limit.
        seed: of the chance.
    """

    delay_s: float
    loss: float = 0.0
    mbit_per_s: float = 0.0
    seed: int = 1


def has_tun() -> bool:
    """Whether this system gives virtual network cards to processes."""
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError:
        return False
    return True


def long_cable(network: Network, host: Host, distance: Distance) -> ExitStack:
    """Make the host's first cable that long, until the result is closed."""
    port, near, far, pair = (f"{name}{host.index}.0" for name in ("port", "near", "far", "long"))
    segment = host.interfaces[0].segment
    stack = ExitStack()
    try:
        stack.callback(_end, _start(network, near, far, distance))
        network.switch.in_network(
            ["ip", "-batch", "-"],
            input=f"link add {pair} type bridge\nlink set {pair} up\n"
            f"link set {far} master {segment} txqueuelen {_QUEUED_PACKETS} up\n"
            f"link set {near} master {pair} txqueuelen {_QUEUED_PACKETS} up\n"
            f"link set {port} master {pair}\n",
        )
        plug_back = f"link set {port} master {segment}\nlink del {pair}\n"
        stack.callback(network.switch.in_network, ["ip", "-batch", "-"], input=plug_back)
    except BaseException:
        stack.close()
        raise
    return stack


def _start(network: Network, near: str, far: str, distance: Distance) -> subprocess.Popen[str]:
    """The process, when it has made both ends."""
    words = [sys.executable, str(_SCRIPT), near, far, *map(str, astuple(distance))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(network.switch.network_command(words), **pipes)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        _end(process)
        raise RuntimeError(f"the cable of {near} could not be made; its message is above")
    return process


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    process.wait(_END_TIMEOUT_S)
