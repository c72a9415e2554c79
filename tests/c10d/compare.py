"""Runs torch's own tests of process groups on Gloo and on ``horovod``, and prints what differs.

    python tests/c10d/compare.py [--ranks 2] [--part K/N] [-k NAME] [--today N] [--only-failed]

Exits with 1 if a test passes on Gloo and not on ``horovod``, unless it is about Gloo itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

# What is Gloo's own in these tests.
_KNOWN = {
    "test_ddp_logging_data_cpu": "it looks for the name gloo in DDP's own log",
    "test_monitored_barrier_gloo_rank_0_timeout": "a limit of 0 s means none, as for other works",
}
_SUITE = Path(__file__).with_name("suite.py")


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    """Our own arguments, and those of ``suite.py``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--today", type=int, metavar="N", help="one of N parts of the tests, another one each day"
    )
    parser.add_argument(
        "--only-failed", action="store_true", help="run on Gloo only what fails on horovod"
    )
    parser.add_argument("--ranks", default="2")
    own, others = parser.parse_known_args()
    if own.today:
        others += ["--part", f"{date.today().toordinal() % own.today + 1}/{own.today}"]
    return own, others


def _outcomes(backend: str, ranks: str, arguments: list[str], folder: Path) -> dict[str, list[str]]:
    found = folder / f"{backend}.json"
    command = [sys.executable, str(_SUITE), "--backend", backend, "--json", str(found)]
    command += ["--ranks", ranks]
    with (folder / f"{backend}.log").open("a") as log:
        subprocess.run([*command, *arguments], check=True, stdout=log, stderr=log)
    outcomes: dict[str, list[str]] = json.loads(found.read_text())
    counts = [sum(o[0] == kind for o in outcomes.values()) for kind in ("passed", "failed")]
    print(f"{backend}: {counts[0]} passed, {counts[1]} failed, {len(outcomes)} in all")
    return outcomes


def _failed(outcomes: dict[str, list[str]]) -> list[str]:
    return [name for name, outcome in outcomes.items() if outcome[0] == "failed"]


def _is_worse(ours: list[str], theirs: list[str]) -> bool:
    return ours[0] == "failed" and theirs[0] == "passed"


def main() -> int:
    own, arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="c10d-"))
    ours = _outcomes("horovod", own.ranks, arguments, folder)
    if own.only_failed:
        # Once more: some have limits of a few seconds, which a loaded machine can miss.
        ours |= _outcomes("horovod", own.ranks, ["--names", *_failed(ours)], folder)
        arguments = ["--names", *_failed(ours)]
    theirs = _outcomes("gloo", own.ranks, arguments, folder)
    worse = [name for name, outcome in theirs.items() if _is_worse(ours[name], outcome)]
    for name in sorted(set(worse) & set(_KNOWN)):
        print(f"Gloo's own: {name}: {_KNOWN[name]}")
    worse = [name for name in worse if name not in _KNOWN]
    for name in worse:
        last = ours[name][1].strip().splitlines()[-1:]
        print(f"passes on gloo only: {name}: {' '.join(last)}")
    print(f"logs: {folder}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
