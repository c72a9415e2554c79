"""Runs the fuzzers of the C++ decoders and those of the Python parsers, for so many minutes in all.

    python tests/fuzz/run.py --minutes 1 tree_root news ...

Each target begins with its seeds and what is kept in corpus/. The exit status is not 0 if anything
was found; the input lies in build/fuzz/found then, and belongs in corpus/ once it is mended.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_BUILD = _ROOT / "build" / "fuzz"
_HERE = Path(__file__).parent
_PYTHON_SHARE = 0.25  # of the time
_MOST_BYTES = 4096
_MOST_MB = 2048


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("targets", nargs="+")
    given = parser.parse_args()
    seconds = given.minutes * 60
    each_s = max(1, round(seconds * (1 - _PYTHON_SHARE) / len(given.targets)))
    failed = [target for target in given.targets if not _fuzz(target, each_s)]
    if not _fuzz_parsers(seconds * _PYTHON_SHARE):
        failed.append("parsers")
    for name in failed:
        print(f"fuzz: {name} has found something; see above and {_BUILD / 'found'}")
    return 1 if failed else 0


def _fuzz(target: str, seconds: int) -> bool:
    seeds, found = _BUILD / "seeds" / target, _BUILD / "found"
    kept = _HERE / "corpus" / target
    for folder in (seeds, found):
        folder.mkdir(parents=True, exist_ok=True)
    folders = [str(seeds)] + ([str(kept)] if kept.is_dir() else [])
    program = next(_BUILD.rglob(f"fuzz_{target}"))
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={_MOST_BYTES}",
        f"-rss_limit_mb={_MOST_MB}",
        "-timeout=20",
        "-print_final_stats=1",
        f"-artifact_prefix={found}/{target}-",
    ]
    environment = {**os.environ, "HOROVOD_SEEDS": str(seeds), "UBSAN_OPTIONS": "print_stacktrace=1"}
    ended = subprocess.run(
        [program, *options, *folders], env=environment, capture_output=True, text=True, check=False
    )
    runs = [line for line in ended.stderr.splitlines() if "number_of_executed_units" in line]
    print(f"fuzz {target}: {runs[0].split()[-1] if runs else 'no'} runs", flush=True)
    if ended.returncode != 0:
        print(ended.stderr[-8000:], flush=True)
    return ended.returncode == 0


def _fuzz_parsers(seconds: float) -> bool:
    environment = {**os.environ, "HOROVOD_FUZZ_SECONDS": str(seconds)}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(_HERE)]
    return subprocess.run(words, env=environment, cwd=_ROOT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
