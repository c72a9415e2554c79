"""Time from the command to the first allreduce: horovodrun and torchrun on the same script.

Two ranks import torch, join and sum 4 bytes. Measured from the start of the command: until the
last rank has its sum, and until the command has ended. ``import torch`` alone, in one process,
is the part that all launchers need. Commands run in turns; figures are medians over rounds.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from command_line import make_parser
from report import OURS, Bar, Table, format_time, print_report

_BIN = Path(sys.executable).parent
_SCRIPT = str(Path(__file__).with_name("first_allreduce.py"))
_COMMANDS = {
    OURS: [str(_BIN / "horovodrun"), "-np", "2", sys.executable, _SCRIPT, "horovod"],
    "torchrun": [str(_BIN / "torchrun"), "--nproc-per-node", "2", _SCRIPT, "gloo"],
    "import torch": [sys.executable, _SCRIPT, "nothing"],
}
_FIRST, _WHOLE = "to the first allreduce", "to the command's end"
_BARS = (Bar(_FIRST, "torchrun", 1), Bar(_FIRST, "import torch", 1.2, is_aim=True))
_TIMEOUT_S = 120


def main() -> int:
    args = make_parser(__doc__, "fewer rounds").parse_args()
    table = Table("start-up, 2 ranks", list(_COMMANDS), format_time, _BARS)
    table.rows = {row: {name: [] for name in _COMMANDS} for row in (_FIRST, _WHOLE)}
    for name in _COMMANDS:
        _run(name)  # fills the page cache
    for _ in range(3 if args.quick else 9):
        for name in _COMMANDS:
            first_s, whole_s = _run(name)
            table.rows[_FIRST][name].append(first_s)
            table.rows[_WHOLE][name].append(whole_s)
    return print_report([table], args.json)


def _run(name: str) -> tuple[float, float]:
    """Seconds until the last rank was done, and until the command ended."""
    start = time.monotonic()
    job = subprocess.run(_COMMANDS[name], capture_output=True, text=True, timeout=_TIMEOUT_S)
    end = time.monotonic()
    times = [float(found) for found in re.findall(r"done at (\d+\.\d+)", job.stdout)]
    rank_count = 1 if name == "import torch" else 2
    if job.returncode != 0 or len(times) != rank_count:
        raise RuntimeError(f"{name} failed with {job.returncode}:\n{job.stdout}{job.stderr}")
    return max(times) - start, end - start


if __name__ == "__main__":
    sys.exit(main())
