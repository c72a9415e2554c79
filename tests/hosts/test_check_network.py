"""``horovodrun --check-network`` where hosts are slow or cannot connect to each other."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from lab import Lab
from ssh_servers import SshServers


def check(lab: Lab, ssh: SshServers, *words: str) -> tuple[int, str, str]:
    launcher = [sys.executable, "-m", "horovod.runner.launch", "--check-network", *ssh.options]
    with lab.hosts[0].start(
        [*launcher, "-H", "host0:4,host1:4,host2:4", *words],
        stdout=-1,
        stderr=-1,
        env={**os.environ, "OMP_NUM_THREADS": "1", **lab.environment()},
    ) as process:
        try:
            out, err = process.communicate(timeout=500)
        finally:
            process.kill()
    return process.returncode, out, err


def states(result: dict[str, Any]) -> dict[str, str]:
    return {"-".join(link["hosts"]): link["state"] for link in result["links"]}


def test_a_slow_host_is_named(lab: Lab, ssh: SshServers) -> None:
    lab.hosts[2].limit_rate(20)
    status, out, err = check(lab, ssh, "--json")
    assert status == 1, err
    result = json.loads(out)
    assert states(result) == {"host0-host1": "fine", "host0-host2": "slow", "host1-host2": "slow"}
    assert result["slow_hosts"] == ["host2"]
    assert {link["transport"] for link in result["links"]} == {"TCP"}
    # 20 Mbit/s are 2.5 MB/s; a loaded machine sends less.
    assert 0 < result["links"][1]["bandwidth_bytes_per_s"] < 4e6


def test_hosts_that_cannot_connect_are_named_and_the_others_measured(
    lab: Lab, ssh: SshServers
) -> None:
    lab.hosts[1].refuse_connections_from(lab.hosts[2])
    lab.hosts[2].refuse_connections_from(lab.hosts[1])
    status, out, err = check(lab, ssh)
    assert status == 1, err
    assert "host1 - host2 cannot be used: init: some hosts cannot connect to each other" in out
    rows = {line.partition("   ")[0]: line for line in out.splitlines()}
    assert "TCP" in rows["host0 - host1"]
    assert "TCP" in rows["host0 - host2"]
