"""Count the engine's instructions of a training step, and compare them with those written down.

    instructions.py PROGRAM COMPILER [--write]

PROGRAM is ``steady_state``. One thread runs its two ranks in turns, so that two runs differ in less
than a thousandth, on a busy machine, too. A step has 602 gradients of 16 floats: how the C library
copies large ones depends on the processor. The numbers in ``instructions.json`` are of one tensor
of one rank, by compiler. More than 5 % above fails; so does less by more than 5 %, which is to be
written down with ``--write``. Exit status 77: skipped.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

WRITTEN = Path(__file__).with_name("instructions.json")
TENSORS, FLOATS, RANKS = 602, 16, 2
FEWER, MORE = 10, 30
TOLERANCE = 0.05
SKIPPED = 77


def count(program: str, steps: int) -> int:
    """The instructions of a run, as Valgrind executes them: with AVX2, without AVX-512."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    arguments = [program, str(steps), str(TENSORS), str(FLOATS)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=500)
    if "unhandled instruction" in done.stderr:
        raise NotImplementedError("this valgrind is older than the processor")
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise RuntimeError(f"valgrind ended with status {done.returncode}: {done.stderr}")
    return int(found[1])


def reason_to_skip() -> str | None:
    if shutil.which("valgrind") is None:
        return "valgrind is missing: sudo apt-get install valgrind"
    if " avx2 " not in Path("/proc/cpuinfo").read_text():
        return "the numbers are of processors with AVX2"
    return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("compiler", help="its name, version and options; the key of the number")
    parser.add_argument("--write", action="store_true", help="write the number down")
    args = parser.parse_args()
    reason = reason_to_skip()
    try:
        steps = 0 if reason else count(args.program, MORE) - count(args.program, FEWER)
    except NotImplementedError as error:
        reason = str(error)
    if reason is not None:
        print(f"SKIPPED: {reason}")
        return SKIPPED
    found = round(steps / (MORE - FEWER) / TENSORS / RANKS)
    written = json.loads(WRITTEN.read_text())
    print(f"{found} instructions for each tensor of a step, with {args.compiler}")
    if args.write:
        WRITTEN.write_text(json.dumps({**written, args.compiler: found}, indent=2) + "\n")
    elif args.compiler not in written:
        print(f"SKIPPED: {WRITTEN.name} has no number for this compiler; --write adds it")
        return SKIPPED
    elif abs(found / written[args.compiler] - 1) > TOLERANCE:
        print(f"{written[args.compiler]} are written down; docs/performance.md tells what to do")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
