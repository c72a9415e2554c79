"""``horovodrun --calibrate``: measures what the engine costs here, for ``--simulate --costs``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from horovod.launch.model.argument_checks import OneLineParser, writable_file
from horovod.launch.model.hosts import parse_hosts
from horovod.launch.run.call_error import reason_of
from horovod.launch.run.function import run
from horovod.launch.simulation.measure import measure
from horovod.simulate.calibration import costs_from, with_network
from horovod.simulate.cluster import COSTS_VERSION, costs_in

_DEFAULT_FILE = "horovod-costs.json"


def run_calibration(arguments: Sequence[str]) -> int:
    """Measure, write the file, and return 0, or 1 if a job fails. Blocks for some seconds."""
    parser = OneLineParser(
        prog="horovodrun --calibrate",
        description="Measure what reductions cost here, for horovodrun --simulate --costs FILE.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-H", "--hosts", metavar="A:1,B:1", help="two hosts, between which the network is measured"
    )
    parser.add_argument("-o", "--output", default=_DEFAULT_FILE, help=f"({_DEFAULT_FILE})")
    given = parser.parse_args(arguments)
    try:
        output = _output(given.output)
        content = _measured(_hosts(given.hosts))
        output.write_text(json.dumps(content, indent=2) + "\n")
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except RuntimeError as error:
        parser.exit(1, f"horovodrun: --calibrate: {reason_of(error)}\n")
    print(f"horovodrun: wrote {given.output}: horovodrun --simulate ... --costs {given.output}")
    return 0


def _output(path: str) -> Path:
    """The file to write.

    Raises:
        ValueError: there is one that is not of ``--calibrate``.
        OSError: it cannot be written.
    """
    if os.path.lexists(path):
        try:
            costs_in(path)
        except ValueError as error:
            raise ValueError(f"-o: it is not overwritten: {error}") from None
    return writable_file("-o", Path(path))


def _hosts(text: str | None) -> list[str]:
    names = [host.hostname for host in parse_hosts(text)] if text else []
    if text and len(names) != 2:
        raise ValueError(
            f"--calibrate measures between two hosts, not {len(names)}: {text}; without -H it "
            "measures this machine alone"
        )
    return names


def _measured(hosts: Sequence[str]) -> dict[str, object]:
    """The content of the file."""
    first = hosts[0] if hosts else "localhost"
    inside, has_spare_cores = run(measure, num_proc=2, hosts=f"{first}:2")[0]
    costs = costs_from(inside, has_spare_cores, f"horovodrun --calibrate on {first}")
    content: dict[str, object] = {"horovod_costs": COSTS_VERSION}
    if hosts:
        between, _ = run(measure, num_proc=2, hosts=",".join(f"{host}:1" for host in hosts))[0]
        costs, network = with_network(between, costs, " to ".join(hosts))
        content["network"] = asdict(network)
    return {**content, "costs": asdict(costs)}
