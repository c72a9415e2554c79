"""TensorFlow: many small sums, a training step, and the import, against TensorFlow's own strategy.

Two ranks with one compute thread each. Sums: 1000 tensors of 4 KB in one ``tf.function``, as 1000
operations. Training: a dense model of 25 M parameters, gradients by ``DistributedGradientTape`` or
reduced by ``MultiWorkerMirroredStrategy``; efficiency is the time of the same step without
communication, on the same busy cores, divided by the step's. XLA: steps with 602 small gradients
that XLA compiles whole, against the same steps without XLA, and both without communication. All
contestants are alive at once and measured in turns; a figure is the median over rounds of the
slowest rank's time. Import: what ``import horovod.tensorflow`` adds to ``import tensorflow``,
median over new processes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from command_line import make_parser
from report import OURS, Bar, Table, efficiency_table, format_time, print_report
from worker_groups import GroupSpec, WorkerGroup, check_equal, measure_and_release, open_groups

_STRATEGY, _ALONE = "multi-worker strategy", "no communication"
_SPECS = (
    GroupSpec(OURS, "horovodrun", "horovod on tensorflow"),
    GroupSpec(_STRATEGY, "processes", "multi-worker strategy"),
    GroupSpec(_ALONE, "processes", "alone on tensorflow"),
)
_RANK_COUNT = 2
_SUMS, _STEP, _IMPORT = "1000 x 4KB", "8 tensors, 25 M parameters", "import horovod.tensorflow"
_COMPILED, _COMPILED_ALONE = "horovod, by XLA", "no communication, by XLA"
_XLA_SPECS = (
    GroupSpec(_COMPILED, "horovodrun", "horovod on xla"),
    GroupSpec(OURS, "horovodrun", "horovod on tensorflow"),
    GroupSpec(_COMPILED_ALONE, "processes", "alone on xla"),
    GroupSpec(_ALONE, "processes", "alone on tensorflow"),
)
_BLOCKS = "602 gradients, residual blocks"
_MODELS = {_BLOCKS: "blocks", "602 gradients, dense layers": "layers"}
_IMPORT_SCRIPT = """
import time
import tensorflow
start = time.perf_counter()
import horovod.tensorflow
print(time.perf_counter() - start)
"""


def main() -> int:
    args = make_parser(__doc__, "fewer and shorter rounds").parse_args()
    names = [spec.name for spec in _SPECS]
    sums = Table("sums in one tf.function, 2 ranks: time", names, format_time)
    sums.bars = [Bar(_SUMS, _STRATEGY, 0.25)]
    steps = Table("training step, 2 ranks: time", names, format_time)
    with open_groups(_SPECS, _RANK_COUNT, "tensorflow_loop:TensorFlowLoop") as groups:
        sums.rows[_SUMS] = _measure_sums(groups, args.quick)
        steps.rows[_STEP] = _measure_training(groups, args.quick)
    compiled = _measure_compiled(args.quick)
    imports = Table("on top of import tensorflow: time", [OURS], format_time)
    imports.rows[_IMPORT] = {OURS: [_import_s() for _ in range(3 if args.quick else 9)]}
    imports.bars = [Bar(_IMPORT, None, 0.3)]
    bars = [Bar(_STEP, None, 0.85), Bar(_STEP, _STRATEGY, 1)]
    tables = [sums, steps, efficiency_table(steps, _ALONE, bars), compiled, imports]
    return print_report(tables, args.json)


def _measure_sums(groups: Sequence[WorkerGroup], is_quick: bool) -> dict[str, list[float]]:
    print(f"measuring {_SUMS}", file=sys.stderr, flush=True)
    for group in groups:
        results = group.call("prepare_sums", tensor_count=1000, element_count=1024)
        if results != [_RANK_COUNT] * _RANK_COUNT:
            raise RuntimeError(f"{group.name}: the sums are {results}")
    return measure_and_release(groups, is_quick, 1.0, 0.4)


def _measure_training(groups: Sequence[WorkerGroup], is_quick: bool) -> dict[str, list[float]]:
    print(f"measuring {_STEP}", file=sys.stderr, flush=True)
    for group in groups:
        sums = group.call("prepare_training")
        if group.name != _ALONE:
            check_equal(group, sums)
    return measure_and_release(groups, is_quick, 1.0, 0.4)


def _measure_compiled(is_quick: bool) -> Table:
    """A step compiled by XLA against the same step without XLA.

    For dense layers on a CPU, XLA's program is slower than TensorFlow's own, as the columns
    without communication show. So the bar is for the other model.
    """
    bars = [Bar(_BLOCKS, OURS, 1, contestant=_COMPILED)]
    names = [spec.name for spec in _XLA_SPECS]
    table = Table("training step with jit_compile=True, 2 ranks: time", names, format_time, bars)
    with open_groups(_XLA_SPECS, _RANK_COUNT, "tensorflow_loop:TensorFlowLoop") as groups:
        for row, model in _MODELS.items():
            print(f"measuring {row}", file=sys.stderr, flush=True)
            for group in groups:
                sums = group.call("prepare_many_gradients", model=model)
                if group.name in (OURS, _COMPILED):
                    check_equal(group, sums)
            table.rows[row] = measure_and_release(groups, is_quick, 1.0, 0.4)
    return table


def _import_s() -> float:
    job = subprocess.run(
        [sys.executable, "-c", _IMPORT_SCRIPT], capture_output=True, text=True, timeout=120
    )
    if job.returncode:
        raise RuntimeError(job.stderr)
    return float(job.stdout)


if __name__ == "__main__":
    sys.exit(main())
