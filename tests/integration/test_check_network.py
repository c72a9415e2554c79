"""``horovodrun --check-network`` on this machine, and with a host that cannot be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_hosts import FakeHosts
from launching import run

pytestmark = pytest.mark.usefixtures("no_child_is_left")


def test_two_processes_of_this_machine() -> None:
    status, out, err = run("--check-network", "--json")
    assert (status, err) == (0, "")
    result = json.loads(out)
    (link,) = result["links"]
    assert result["is_fine"]
    assert result["hosts"] == ["localhost"]
    assert link["transport"] == "shared memory"
    assert link["latency_s"] > 0
    assert link["bandwidth_bytes_per_s"] > 0


def test_a_host_that_refuses_is_named(tmp_path: Path) -> None:
    fake = FakeHosts(tmp_path)
    fake.first("host-b", "echo 'Permission denied (publickey).' >&2; exit 255")
    status, out, err = run("--check-network", "-H", "localhost:1,host-b:1", env=fake.environ)
    assert (status, out) == (1, "")
    assert err.startswith("horovodrun: the network cannot be checked: could not connect to some")
    assert "host-b: ssh exited with code 255" in err
    fake.assert_empty()
