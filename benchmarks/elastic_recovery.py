"""Time from a killed rank to the next step: elastic training with horovodrun and with torchrun.

Both train the same small model on 4 ranks of this machine and save equally often: ours in memory,
plain DDP on Gloo under ``torchrun --max-restarts`` in a file, which it loads after a restart. After
a few steps of all 4 ranks a random rank is killed, the same one for both. Measured are the time to
the first step on any rank, and to the first step of 4 ranks again. Each is one job; the kills come
in blocks, in turns, and the other job pauses. In the end the history of our job is checked: samples
that are missing from the weights or counted twice, differences from undisturbed training,
restarts of the whole job.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from command_line import make_parser
from on_chaos import ChaosJob, JobError, Limits, WatchedJob, problems_of
from report import OURS, Bar, Table, format_count, format_time, print_report

_BENCHMARKS = Path(__file__).resolve().parent
_RANK_COUNT = 4
_PEER = "torchrun"
_NEXT, _ALL = "to the next step", f"to the next step of {_RANK_COUNT} ranks"
_BARS = (Bar(_NEXT, _PEER, 1 / 3), Bar(_ALL, _PEER, 1, is_aim=True))
_WRONG = "faults"
_STEPS_BETWEEN = 20
_KILLS_IN_TURN = {OURS: 10, _PEER: 2}


class _Contestant:
    """A job that pauses except while it is measured."""

    def __init__(self, job: WatchedJob, chance: random.Random) -> None:
        self.job = job
        self._chance = chance
        self._hold = job.folder / "hold"
        self._done_before: dict[str, int] = {}

    def open(self) -> None:
        """Start it and wait until all ranks have made steps."""
        self.job.open()
        self._wait_for_all()
        self._pause()

    def measure(self, kill_count: int) -> dict[str, list[float]]:
        """Kill ``kill_count`` ranks, one after the other; the seconds that each costs."""
        costs: dict[str, list[float]] = {_NEXT: [], _ALL: []}
        self._hold.unlink()
        for _ in range(kill_count):
            self._wait_for_all()
            world = self.job.watch.world
            victim = self._chance.choice(self.job.watch.members)
            start = time.monotonic()
            self.job.signal(victim, signal.SIGKILL)
            costs[_NEXT].append(self.job.until_next_step(start, world))
            costs[_ALL].append(self._wait_for_all() - start)
        self._pause()
        return costs

    def finish(self) -> None:
        """Let it train to the end of an epoch."""
        self._hold.unlink()
        self.job.finish()

    def _pause(self) -> None:
        world = self.job.watch.world
        self._hold.touch()
        self._done_before = {world: self.job.watch.batches_done(world)}

    def _wait_for_all(self) -> float:
        """Wait until all ranks have made steps; the time of their first step in this world."""
        watch = self.job.watch

        def is_ready() -> bool:
            is_whole = len(watch.members) == _RANK_COUNT
            done = watch.batches_done(watch.world) - self._done_before.get(watch.world, 0)
            return is_whole and done >= _STEPS_BETWEEN

        self.job.wait_until(is_ready, f"there are no {_RANK_COUNT} ranks")
        return watch.first_batch_in(watch.world)


def main() -> int:
    args = _parse_arguments()
    names = [OURS, _PEER]
    times = Table(f"a rank of {_RANK_COUNT} is killed", names, format_time, _BARS)
    times.rows = {row: {name: [] for name in names} for row in (_NEXT, _ALL)}
    folder = Path(tempfile.mkdtemp(prefix="recovery-"))
    has_failed = False
    try:
        problems = _measure(folder, times, args.turns, args.seed)
    except JobError as error:
        has_failed = True
        problems = [f"{error}\nall files are in {folder}"]
    finally:
        if not has_failed:
            shutil.rmtree(folder)
    print(*problems, sep="\n")
    tables = [times, _worst(times), _faults(len(times.rows[_NEXT][OURS]), len(problems))]
    return print_report(tables, args.json)


def _measure(folder: Path, times: Table, turn_count: int, seed: int) -> list[str]:
    """Fill ``times``; the problems found in our job's history."""
    with ExitStack() as stack:
        contestants = {}
        for name, job in ((OURS, _ours(folder / OURS)), (_PEER, _torchrun(folder / _PEER))):
            stack.callback(job.close)
            contestants[name] = _Contestant(job, random.Random(seed))
            contestants[name].open()
        for _ in range(turn_count):
            for name, contestant in contestants.items():
                for row, values in contestant.measure(_KILLS_IN_TURN[name]).items():
                    times.rows[row][name] += values
        contestants[OURS].finish()
        return problems_of(contestants[OURS].job.watch.events)


def _ours(folder: Path) -> WatchedJob:
    folder.mkdir()
    hosts = {f"127.0.0.{number}": 1 for number in range(1, _RANK_COUNT + 1)}
    return ChaosJob(folder, Limits(min_np=1, max_np=_RANK_COUNT, hosts=hosts), settings={})


def _torchrun(folder: Path) -> WatchedJob:
    folder.mkdir()
    limits = ["--nproc-per-node", str(_RANK_COUNT), "--max-restarts", "1000000"]
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", *limits]
    training = [str(_BENCHMARKS / "recovery_ddp.py"), str(folder)]
    # Otherwise new workers find addresses of dead ones, and are restarted several times.
    settings = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return WatchedJob(folder, [*torchrun, *training], settings)


def _worst(times: Table) -> Table:
    table = Table("the worst of these", times.contestants, times.format_value)
    for row, values in times.rows.items():
        table.rows[row] = {name: [max(each)] for name, each in values.items()}
    return table


def _faults(kill_count: int, problem_count: int) -> Table:
    title = f"{kill_count} kills in one job: problems in the history of all samples"
    table = Table(title, [OURS], format_count, (Bar(_WRONG, None, 0),))
    table.rows[_WRONG] = {OURS: [problem_count]}
    return table


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--turns", type=int, default=10, help="each has 10 kills of ours")
    parser.add_argument("--seed", type=int, default=1, help="chooses the killed ranks")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
