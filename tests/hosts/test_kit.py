"""The test hosts: what they share, their cables, and that they leave nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from lab import Lab, wait_until
from long_cable import Distance, has_tun, long_cable
from network import Host, Interface, plain_cabling
from ssh_servers import SshServers
from tampering import Replaced

SUPPORT = Path(__file__).with_name("support")
CONNECT = """
import socket, sys, time
begin = time.monotonic()
socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)
print(time.monotonic() - begin)
"""
RECEIVE = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
    receiver.bind(("", 0))
    print(receiver.getsockname()[1], flush=True)
    heard = 0
    while receiver.recv(1) != b"e":
        heard += 1
    print(heard)
"""
SEND = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    target = (sys.argv[1], int(sys.argv[2]))
    for _ in range(100):
        sender.sendto(b"x", target)
    for _ in range(20):  # one of them arrives
        sender.sendto(b"e", target)
"""
MAKER = """
import subprocess, sys
from network import Network, plain_cabling
network = Network(plain_cabling(2))
sleepers = [host.start(["sleep", "1000"]) for host in network.hosts]
for host in network.hosts:
    while not host.processes():
        pass
print(*[process.pid for host in network.hosts for process in host.processes()], flush=True)
sys.stdin.read()
"""


def reaches(source: Host, target: Host, address: str | None = None) -> bool:
    """Whether ``source`` can open a TCP connection to ``target``."""
    return round_trip_s(source, target, address) is not None


def round_trip_s(source: Host, target: Host, address: str | None = None) -> float | None:
    """How long it takes to open a TCP connection; None if it cannot be opened."""
    listen = (
        "import socket; s = socket.create_server(('::', 0), family=socket.AF_INET6,"
        " dualstack_ipv6=True); print(s.getsockname()[1], flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with target.start([sys.executable, "-c", listen], **pipes) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        words = [sys.executable, "-c", CONNECT, address or target.address, port]
        with source.start(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as client:
            found = client.communicate(timeout=200)[0]
        server.communicate("\n", timeout=200)
    return float(found) if found else None


def count_heard(source: Host, target: Host) -> int:
    """How many of 100 packets come from ``source`` to ``target``."""
    with target.start([sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        source.run([sys.executable, "-c", SEND, target.address, port])
        return int(receiver.communicate(timeout=200)[0])


def test_hosts_have_names_and_processes_of_their_own(lab: Lab) -> None:
    lab.open(3, own_name_address="127.0.1.1")
    for host in lab.hosts:
        assert host.run(["uname", "-n"]) == f"{host.name}\n"
        assert host.run(["sh", "-c", "echo $$"]).strip() != ""
    assert lab.hosts[0].run(["getent", "hosts", "host0"]).split()[0] == "127.0.1.1"
    assert lab.hosts[1].run(["getent", "hosts", "host0"]).split()[0] == lab.hosts[0].address
    assert [host.processes() for host in lab.hosts] == [[], [], []]
    with lab.hosts[1].start(["sleep", "1000"]) as sleeper:
        wait_until(lambda: bool(lab.hosts[1].processes()), "no process")
        (process,) = lab.hosts[1].processes()
        assert lab.hosts[0].processes() == []
        process.kill()
        assert sleeper.wait(timeout=200) == -signal.SIGKILL


def test_traffic_is_counted(lab: Lab) -> None:
    lab.open(plain_cabling(2, ipv6=True))
    first, second = lab.hosts
    before = first.traffic().sent_bytes
    assert reaches(first, second)
    assert reaches(second, first, first.addresses[1])
    assert first.traffic().sent_bytes > before


def test_a_pulled_cable_and_a_plugged_one(lab: Lab) -> None:
    network = lab.open(2)
    first, second = lab.hosts
    network.disconnect(second)
    assert not reaches(first, second)
    assert not reaches(second, first)
    network.connect(second)
    # The neighbour must be resolved again.
    wait_until(lambda: reaches(first, second), "still no connection")


def test_one_direction_only(lab: Lab) -> None:
    lab.open(2)
    first, second = lab.hosts
    first.refuse_connections_from(second)
    assert reaches(first, second)
    assert not reaches(second, first)
    first.hear_all()
    assert reaches(second, first)


def test_packets_get_lost(lab: Lab) -> None:
    lab.open(2)
    first, second = lab.hosts
    second.lose_packets(20)
    assert 60 <= count_heard(first, second) <= 97  # 80 with a standard deviation of 4


@pytest.mark.skipif(not has_tun(), reason="this system has no TUN devices")
def test_a_long_cable(lab: Lab) -> None:
    """Packets are late and get lost, until the cable is a short one again."""
    network = lab.open(2)
    first, second = lab.hosts
    with long_cable(network, second, Distance(delay_s=0.1, loss=0.2)):
        wait_until(lambda: reaches(first, second), "no connection")
        wait_until(lambda: (round_trip_s(second, first) or 0) >= 0.2, "no round trip of 0.2 s")
        assert 60 <= count_heard(first, second) <= 97
    with long_cable(network, second, Distance(delay_s=0, mbit_per_s=0.01)):
        # A connection takes two packets of 74 bytes, and others before them find the addresses.
        wait_until(lambda: (round_trip_s(first, second) or 0) >= 0.1, "no limit of the rate")
    assert reaches(first, second)
    wait_until(lambda: (round_trip_s(first, second) or 1) < 0.1, "still late")


def test_cables_that_lead_nowhere(lab: Lab) -> None:
    """Both hosts have the same address on one of their interfaces, as with docker0."""
    useless = Interface("docker0", ("172.17.0.1/16",), segment="")
    lab.open([[useless, *interfaces] for interfaces in plain_cabling(2)])
    first, second = lab.hosts
    assert reaches(first, second, second.addresses[1])
    assert first.addresses[0] == second.addresses[0]


def test_ssh_between_hosts(lab: Lab, ssh: SshServers) -> None:
    options = ssh.options
    for target in lab.hosts:
        words = ["ssh", *options, target.name, "uname -n"]
        assert lab.hosts[0].run(words) == f"{target.name}\n"


def test_nothing_outlives_whoever_made_the_hosts(lab: Lab) -> None:
    """Not even after SIGKILL."""
    with subprocess.Popen(
        [sys.executable, "-c", MAKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=SUPPORT,
    ) as maker:
        assert maker.stdout is not None
        sleepers = [psutil.Process(int(pid)) for pid in maker.stdout.readline().split()]
        inits = psutil.Process(maker.pid).children(recursive=True)
        assert len(sleepers) == 2
        maker.kill()
    _, living = psutil.wait_procs([*sleepers, *inits], timeout=200)
    assert [process for process in living if process.status() != "zombie"] == []


def test_what_looks_like_a_start_by_chance_goes_on() -> None:
    """The ranks may send nothing more before it arrives; a longer start waits for its rest."""
    old, new = b"\x80\x05\x95" + bytes(range(20)), b"n" * 23
    tamper = Replaced(old, new)
    assert tamper.feed(b"a code\x80") == (b"a code\x80",)
    assert tamper.feed(b"and " + old[:9]) == (b"and ",)
    assert not tamper.has_struck
    assert tamper.feed(old[9:] + b"\x80\x05") == (new + b"\x80\x05",)
    assert tamper.has_struck
