"""Elastic jobs with random faults, one after the other: ``make chaos MINUTES=60 SEED=1``.

Each round is a job with its own seed, which determines its hosts, its faults and their times;
the result also depends on the machine. Exits with 1 at the first round with a problem, keeps the
folder of that round and says how to repeat it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("support")))

from chaos_job import JobError
from fault_player import Recovery
from rounds import Round, plan_round, play_round


class Tally:
    """Counts of the rounds so far."""

    def __init__(self) -> None:
        self.rounds = 0
        self.kinds: Counter[str] = Counter()
        self.in_place: list[float] = []
        self.with_newcomers: list[float] = []

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        text = f"{self.rounds} rounds, {self.kinds.total()} faults ({kinds}); to the next step"
        text += f" {_summary(self.in_place)}"
        return f"{text}, where newcomers came with it {_summary(self.with_newcomers)}"

    def add(self, recoveries: Iterable[Recovery]) -> None:
        """Add another round."""
        self.rounds += 1
        for recovery in recoveries:
            self.kinds[recovery.fault.kind] += 1
            if recovery.seconds is not None:
                seconds = self.in_place if recovery.is_in_place else self.with_newcomers
                seconds.append(recovery.seconds)


def _summary(seconds: list[float]) -> str:
    if not seconds:
        return "-"
    return f"{statistics.median(seconds):.2f} s (median), {max(seconds):.2f} s (worst)"


def main() -> int:
    args = _parse_arguments()
    print(f"seed {args.seed}", flush=True)
    deadline = time.monotonic() + 60 * args.minutes
    tally = Tally()
    seed = args.seed
    while tally.rounds == 0 or time.monotonic() < deadline:
        planned = plan_round(seed, args.faults)
        if not _play(planned, tally, args.faults):
            return 1
        print(f"seed {seed}: {tally}", flush=True)
        seed += 1
    return 0


def _play(planned: Round, tally: Tally, fault_count: int) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        recoveries = play_round(folder, planned.limits, planned.faults)
    except JobError as error:
        print(f"{error}\n\nseed {planned.seed}: {planned.limits}\nfaults:")
        print(*(f"  {fault}" for fault in planned.faults), sep="\n")
        again = f"python {sys.argv[0]} --minutes 0 --seed {planned.seed} --faults {fault_count}"
        print(f"\nall files are in {folder}; again: {again}")
        return False
    shutil.rmtree(folder)
    tally.add(recoveries)
    return True


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="no new round after that")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(1_000_000), help="of the first round"
    )
    parser.add_argument("--faults", type=int, default=12, help="in each round")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
