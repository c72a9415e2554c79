"""From a killed rank to the next step: elastic training with horovodrun and with torchrun.

Both train the same few numbers on 4 ranks of this machine and save as often: ours in memory, plain
DDP on Gloo under ``torchrun --max-restarts`` in a file, from which it goes on. A rank at random is
killed, which one is the same for both, once a few steps have been done by all 4. The next step is
the first one that is complete on some rank; after that comes the first one of 4 ranks again. Ours
is one job and torchrun's another; kills take turns in blocks, and the job whose turn it is not
stands still meanwhile. In the end all that ours has done is accounted for: samples that are not in
its weights, or more than once, differences to undisturbed training, whole restarts.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from on_chaos import ChaosJob, Limits, WatchedJob, problems_of
from report import OURS, Bar, Table, format_count, format_time, print_report

_BENCHMARKS = Path(__file__).resolve().parent
_RANK_COUNT = 4
_PEER = "torchrun"
_NEXT, _ALL = "to the next step", f"to the next step of {_RANK_COUNT} ranks"
_BARS = (Bar(_NEXT, _PEER, 1 / 3), Bar(_ALL, _PEER, 1, is_aim=True))
_WRONG = "faults"
_STEPS_BETWEEN = 20


class _Contestant:
    """A job that stands still but while it is measured."""

    def __init__(self, job: WatchedJob, chance: random.Random) -> None:
        self.job = job
        self._chance = chance
        self._hold = job.folder / "hold"
        self._done_before: dict[str, int] = {}

    def open(self) -> None:
        """Start it, until all ranks have done something."""
        self.job.open()
        self._wait_for_all()
        self._stand_still()

    def measure(self, kill_count: int) -> dict[str, list[float]]:
        """Kill so many ranks, one after the other; what each costs."""
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
        self._stand_still()
        return costs

    def finish(self) -> None:
        """Let it train to the end of an epoch."""
        self._hold.unlink()
        self.job.finish()

    def _stand_still(self) -> None:
        world = self.job.watch.world
        self._hold.touch()
        self._done_before = {world: self.job.watch.batches_done(world)}

    def _wait_for_all(self) -> float:
        """Until all ranks have moved together; when they did their first step in this world."""
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
    kill_counts = {OURS: 10, _PEER: 2}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        jobs = {OURS: _ours(Path(folder, OURS)), _PEER: _torchrun(Path(folder, _PEER))}
        contestants = {
            name: _Contestant(job, random.Random(args.seed)) for name, job in jobs.items()
        }
        for name, contestant in contestants.items():
            stack.callback(jobs[name].close)
            contestant.open()
        for _ in range(args.turns):
            for name, contestant in contestants.items():
                for row, values in contestant.measure(kill_counts[name]).items():
                    times.rows[row][name] += values
        contestants[OURS].finish()
        problems = problems_of(jobs[OURS].watch.events)
    print(*problems, sep="\n")
    tables = [times, _worst(times), _faults(args.turns * kill_counts[OURS], len(problems))]
    return 0 if print_report(tables, args.json) else 1


def _ours(folder: Path) -> WatchedJob:
    folder.mkdir()
    hosts = {f"127.0.0.{number}": 1 for number in range(1, _RANK_COUNT + 1)}
    return ChaosJob(folder, Limits(min_np=1, max_np=_RANK_COUNT, hosts=hosts), settings={})


def _torchrun(folder: Path) -> WatchedJob:
    folder.mkdir()
    limits = ["--nproc-per-node", str(_RANK_COUNT), "--max-restarts", "1000000"]
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", *limits]
    training = [str(_BENCHMARKS / "recovery_ddp.py"), str(folder)]
    # Or new workers find addresses of dead ones there, and it restarts them several times.
    settings = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return WatchedJob(folder, [*torchrun, *training], settings)


def _worst(times: Table) -> Table:
    table = Table("the worst of these", times.contestants, times.format_value)
    for row, values in times.rows.items():
        table.rows[row] = {name: [max(each)] for name, each in values.items()}
    return table


def _faults(kill_count: int, problem_count: int) -> Table:
    title = f"{kill_count} kills in one job: what is wrong with the history of all samples"
    table = Table(title, [OURS], format_count, (Bar(_WRONG, None, 0),))
    table.rows[_WRONG] = {OURS: [problem_count]}
    return table


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=10, help="of 10 kills of ours, 2 of the other")
    parser.add_argument("--seed", type=int, default=1, help="of who is killed")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
