"""JAX: training steps with optax through one compiled program, against its collectives and MPI's.

Two ranks with one compute thread each, one jitted step with donated parameters: a deep network
whose gradients are 602 tensors of 0.6 M elements, and a wide one with 25 M parameters in 8. Ours is
``DistributedOptimizer``. One peer is ``jax.distributed`` with its CPU collectives (Gloo), where XLA
sums the gradients of one program over both processes; the other ``mpi4jax`` on Open MPI, where it
is installed: it has no wheels, ``make bench`` compiles it. Efficiency is the time of the same step
without communication, on as many busy cores, divided by the step's. All contestants are alive at
once and measured in turns; a figure is the median over rounds of the slowest rank's time.

XLA allocates its temporaries anew in every step, and glibc gets large ones from the system, which
clears their pages: a tenth of the wide network's step, and more with communication, where all
gradients are there at once. So all contestants run that network with the settings of docs/jax.md
that make glibc keep such memory; ``--default-malloc`` measures without them. The deep network runs
with glibc's own ones: the threads of a process would wait for each other in the one arena.

Each rank has a core of its own, as Open MPI binds processes by default: XLA's threads hand work to
each other, and Linux otherwise wakes threads of both ranks on one core for a millisecond now and
then, while the other core is idle. ``--unbound`` measures without that.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from report import OURS, Bar, Table, format_percent, format_time, print_report
from worker import BOUND
from worker_groups import GroupSpec, WorkerGroup, measure_in_turns, open_groups

_GLOO, _MPI, _ALONE = "jax.distributed Gloo", "mpi4jax", "no communication"
_SPECS = (
    GroupSpec(OURS, "horovodrun", "horovod on jax"),
    GroupSpec(_GLOO, "processes", "jax.distributed"),
    GroupSpec(_MPI, "openmpi", "mpi4jax"),
    GroupSpec(_ALONE, "processes", "alone on jax"),
)
_KEPT_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "100000000",
}
_RANK_COUNT = 2
_MANY, _LARGE = "602 tensors, 0.6 M parameters", "8 tensors, 25 M parameters"
_NETWORKS: dict[str, dict[str, Any]] = {
    _MANY: {"width": 44, "layer_count": 301, "batch_size": 256},
    _LARGE: {"width": 2499, "layer_count": 4, "batch_size": 128},
}
_KEEPS_MEMORY = {_LARGE}


def main() -> int:
    args = _parse_arguments()
    os.environ[BOUND] = "" if args.unbound else "yes"
    specs = [spec for spec in _SPECS if spec.name != _MPI or find_spec("mpi4jax")]
    if len(specs) < len(_SPECS):
        print("mpi4jax is not installed", file=sys.stderr, flush=True)
    steps = Table("training step, 2 ranks: time", [spec.name for spec in specs], format_time)
    for row, network in _NETWORKS.items():
        print(f"measuring {row}", file=sys.stderr, flush=True)
        if row in _KEEPS_MEMORY and not args.default_malloc:
            os.environ.update(_KEPT_MEMORY)
        with open_groups(specs, _RANK_COUNT, "jax_loop:JaxLoop") as groups:
            steps.rows[row] = _measure(groups, network, args.quick)
    return 0 if print_report([steps, _efficiency(steps)], args.json) else 1


def _measure(
    groups: Sequence[WorkerGroup], network: dict[str, Any], is_quick: bool
) -> dict[str, list[float]]:
    for group in groups:
        sums = group.call("prepare_training", **network)
        if group.name != _ALONE and len(set(sums)) != 1:
            raise RuntimeError(f"{group.name}: the ranks' weights differ after two steps: {sums}")
    return measure_in_turns(groups, rounds=3 if is_quick else 9, loop_s=0.4 if is_quick else 1.0)


def _efficiency(steps: Table) -> Table:
    bars = [
        Bar(_MANY, None, 0.85),
        Bar(_LARGE, None, 0.90),
        *(Bar(row, peer, 1) for row in _NETWORKS for peer in (_GLOO, _MPI)),
    ]
    title = "efficiency: step without communication / step"
    communicating = [name for name in steps.contestants if name != _ALONE]
    table = Table(title, communicating, format_percent, bars, is_more_better=True)
    for row in _NETWORKS:
        alone = steps.median(row, _ALONE)
        medians = {name: steps.median(row, name) for name in table.contestants}
        if alone is not None:
            table.rows[row] = {name: [alone / step] for name, step in medians.items() if step}
    return table


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--unbound", action="store_true", help="ranks on any core")
    parser.add_argument("--default-malloc", action="store_true", help="memory as glibc manages it")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
