"""Training on several hosts over bad links; over good ones it is in ``test_launch.py``."""

from __future__ import annotations

import re
import time

from lab import ROOT, Lab

OUTAGE_S = 0.5
DIGITS = str(ROOT / "examples" / "pytorch" / "digits.py")


def test_a_slow_link(lab: Lab) -> None:
    lab.open(2)
    for host in lab.hosts:
        host.limit_rate(50)
    job = lab.start((1, 1), [DIGITS, "--epochs", "2", "--min-accuracy", "0"])
    output = job.check(timeout_s=500)[0]
    assert len(re.findall("loss", output)) == 2
    assert "bitwise equal" in output


def test_a_link_that_loses_every_fifth_packet(lab: Lab) -> None:
    lab.open(2)
    for host in lab.hosts:
        host.lose_packets(20)
    # TCP may wait seconds before it sends again; the default limits are longer.
    job = lab.start_worker((1, 1), "steady.py", "16", "6")
    job.check(timeout_s=500)
    for report in lab.read_from(range(2), "report", job).values():
        assert report == {"error": None, "later": None}


def test_a_link_that_is_gone_for_a_moment(lab: Lab) -> None:
    network = lab.open(2)
    job = lab.start_worker((1, 1), "steady.py", "4096", "1000")
    lab.read_from(range(2), "ready", job)
    network.disconnect(lab.hosts[1])
    before = lab.hosts[0].traffic().received_bytes
    time.sleep(OUTAGE_S)
    assert lab.hosts[0].traffic().received_bytes - before < 1 << 20  # it was still running
    network.connect(lab.hosts[1])
    job.check(timeout_s=500)
    for report in lab.read_from(range(2), "report", job).values():
        assert report == {"error": None, "later": None}
