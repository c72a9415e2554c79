"""Tests with several hosts, which are namespaces of this machine: root makes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Lab
from network import missing
from ssh_servers import SshServers, missing_ssh

# test_bodies.py starts these inside the hosts.
collect_ignore = ["bodies"]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Hosts for one test, which must leave nothing behind."""
    if reason := missing():
        pytest.skip(reason)
    lab = Lab(tmp_path)
    yield lab
    lab.close()


@pytest.fixture
def ssh(lab: Lab) -> Iterator[SshServers]:
    """Three hosts that reach each other by ssh."""
    if reason := missing_ssh():
        pytest.skip(reason)
    with SshServers(lab.open(3, own_name_address="127.0.1.1")) as servers:
        yield servers
