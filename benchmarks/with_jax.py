"""JAX: training steps with optax in one compiled program, against JAX's own collectives and MPI.

Two ranks with one compute thread each, one jitted step with donated parameters: a deep network
with 602 gradients of 0.6 M elements, and a wide one with 25 M parameters in 8. Ours is
``DistributedOptimizer``. One peer is ``jax.distributed`` with its CPU collectives (Gloo), where XLA
sums the gradients of one program over both processes. The other is ``mpi4jax`` on Open MPI, if it
is installed: it has no wheels, ``make bench`` compiles it. Efficiency is the time of the same step
without communication, on the same busy cores, divided by the step's. All contestants are alive at
once and measured in turns; a figure is the median over rounds of the slowest rank's time.

XLA allocates temporary arrays in every step, and glibc gets large ones from the system, which
clears their pages. This takes a tenth of the wide network's step, and more with communication,
when all gradients exist at the same time. So all contestants run that network with settings that
make glibc keep such memory, as ``--keep-memory`` does; ``--default-malloc`` measures without them.
The deep network runs with glibc's defaults: with one arena the threads of a process would wait for
each other.

Each rank has its own core, as Open MPI binds processes by default: XLA's threads hand work to each
other, and Linux otherwise sometimes wakes threads of both ranks on one core while the other core
is idle. ``--unbound`` measures without binding.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from command_line import make_parser
from report import OURS, Bar, Table, efficiency_table, format_time, print_report
from worker import BOUND
from worker_groups import GroupSpec, WorkerGroup, check_equal, measure_and_release, open_groups

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
    return print_report([steps, efficiency_table(steps, _ALONE, _bars())], args.json)


def _measure(
    groups: Sequence[WorkerGroup], network: dict[str, Any], is_quick: bool
) -> dict[str, list[float]]:
    for group in groups:
        sums = group.call("prepare_training", **network)
        if group.name != _ALONE:
            check_equal(group, sums)
    return measure_and_release(groups, is_quick, 1.0, 0.4)


def _bars() -> list[Bar]:
    return [
        Bar(_MANY, None, 0.85),
        Bar(_LARGE, None, 0.90),
        *(Bar(row, peer, 1) for row in _NETWORKS for peer in (_GLOO, _MPI)),
    ]


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "fewer and shorter rounds")
    parser.add_argument("--unbound", action="store_true", help="ranks on any core")
    parser.add_argument("--default-malloc", action="store_true", help="memory as glibc manages it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
