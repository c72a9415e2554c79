"""Hosts that are far apart: losses, connections for tensors, and what a network check advises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from body_runs import run_bodies
from lab import ROOT, Lab, wait_until
from long_cable import Distance, has_tun, long_cable
from ssh_servers import SshServers

BODIES = ROOT / "tests" / "hosts" / "bodies" / "test_across_hosts.py"
FAR = Distance(delay_s=0.02, loss=0.001)
needs_tun = pytest.mark.skipif(not has_tun(), reason="this system has no TUN devices")
# A connection of the engine's kind to an address and port; prints its congestion control.
SUITED = """
import socket, sys
from horovod.rendezvous.base.tcp import tune
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connected:
    tune(connected, 30)
    print(connected.getsockopt(socket.IPPROTO_TCP, 13, 16).split(b"\\0")[0].decode())
"""
LISTEN = """
import socket
listener = socket.create_server(("", 0))
print(listener.getsockname()[1], flush=True)
input()
"""


def congestion_control(lab: Lab) -> str:
    first, second = lab.hosts[:2]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with second.start([sys.executable, "-c", LISTEN], **pipes) as listener:
        assert listener.stdout is not None
        port = listener.stdout.readline().strip()
        found = first.run([sys.executable, "-c", SUITED, second.address, port])
        listener.communicate("\n", timeout=200)
    return found.strip()


@needs_tun
def test_sums_over_several_connections_of_a_long_link(lab: Lab) -> None:
    network = lab.open(2)
    with long_cable(network, network.hosts[1], FAR):
        run_bodies(lab, (1, 2), BODIES, environment={"HOROVOD_LINK_CONNECTIONS": "4"})


@pytest.mark.parametrize("protection", ["integrity", "encrypted"])
def test_several_connections_with_seals(lab: Lab, protection: str) -> None:
    variables = {"HOROVOD_LINK_CONNECTIONS": "3", "HOROVOD_LINK_PROTECTION": protection}
    run_bodies(lab, (2, 1), BODIES, environment=variables)


@needs_tun
def test_long_links_use_bbr_where_it_is_permitted(lab: Lab) -> None:
    network = lab.open(2)
    kernel = Path("/proc/sys/net/ipv4")
    usual = network.hosts[0].run(["cat", str(kernel / "tcp_congestion_control")]).strip()
    if "bbr" not in (kernel / "tcp_allowed_congestion_control").read_text().split():
        pytest.skip("this kernel does not permit bbr")
    # On a busy machine a round trip may be long without a long cable.
    wait_until(lambda: congestion_control(lab) == usual, "the congestion control has changed")
    with long_cable(network, network.hosts[1], FAR):
        assert congestion_control(lab) == "bbr"


@needs_tun
def test_a_long_link_is_measured_with_more_connections(lab: Lab, ssh: SshServers) -> None:
    with long_cable(lab.network, lab.hosts[1], FAR):
        words = ["-m", "horovod.runner.launch", "--check-network", "--json", *ssh.options]
        found = lab.hosts[0].run(
            [sys.executable, *words, "-H", "host0:1,host1:1"],
            env={**os.environ, "OMP_NUM_THREADS": "1", **lab.environment()},
            timeout=500,
        )
    (link,) = json.loads(found)["links"]
    assert link["latency_s"] >= 2 * FAR.delay_s
    assert 0 <= link["resent_share"] < 0.2
    assert link["advised_connections"] in (1, 4, 16)
