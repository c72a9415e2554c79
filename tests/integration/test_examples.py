"""The examples run under horovodrun as their first lines say, and print the expected results."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

import psutil
import pytest
import torch
from example_jobs import (
    BATCH_TIMEOUT_S,
    ROOT,
    TIMEOUT_S,
    Batch,
    Examples,
    assert_loss_falls,
    assert_served_without_horovod,
    printed_number,
)

EXAMPLES = Examples("pytorch", modules=("resnet.py",))
QUICK = "--epochs 2 --min-accuracy 0"
LEARNT = "--epochs 4 --min-accuracy 0.6"
TINY = ("--synthetic", "--small", "--synthetic-images", "96", "--batch-size", "8", "--threads", "1")

command, output_of = EXAMPLES.command, EXAMPLES.output_of

# By the number of ranks; tests name their commands.
COMMANDS = {
    1: {
        "digits": f"digits.py {QUICK}",
        "below": "digits.py --epochs 1 --min-accuracy 1.01",
        "few ranks": f"digits_options.py {QUICK} --teams 2",
    },
    2: {
        "whole": "digits.py --export {exported}",
        "powersgd": f"digits_options.py {LEARNT} --compression powersgd",
        "sum": f"digits_options.py {LEARNT} --op Sum --compression fp16 --groups 2",
        "sparse": f"digits_options.py {LEARNT} --sparse-embedding --backward-passes 2 "
        "--predivide-factor 2 --groups 3",
        "sparse as dense": f"digits_options.py {LEARNT} --sparse-embedding --sparse-as-dense "
        "--compression fp16 --backward-passes 3",
        "rates": "adasum.py --rates 0.2 --steps 60 --ops Average Sum Adasum",
        "mixed": f"amp_accumulation.py {QUICK} --accumulate 3",
        "float16": "amp_accumulation.py --epochs 1 --min-accuracy 0 --dtype float16 --images 96",
        "uneven": "uneven_data.py",
        "local": "local_steps.py --fragments 2 --overlap 5",
        "speed": "synthetic_benchmark.py --small --batch-size 4 --warmup-batches 1 --iterations 2 "
        "--batches-per-iteration 2 --fp16-allreduce",
        "resnet": "synthetic_benchmark.py --batch-size 2 --image-size 64 --warmup-batches 0 "
        "--iterations 1 --batches-per-iteration 1",
    },
    3: {
        "adasum": f"digits_options.py {LEARNT} --op Adasum",
        "uneven": f"uneven_data.py {QUICK}",
    },
    4: {
        "digits": f"digits.py {QUICK}",
        "teams": f"digits_options.py {QUICK} --teams 2",
    },
}

pytestmark = pytest.mark.timeout(BATCH_TIMEOUT_S + 20)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the digits of two ranks are exported."""
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def on(exported: Path) -> dict[int, Batch]:
    """The batch of each number of ranks; a job starts when a test asks for an output."""
    return {
        ranks: Batch(
            ranks,
            {name: f"pytorch/{line.format(exported=exported)}" for name, line in commands.items()},
        )
        for ranks, commands in COMMANDS.items()
    }


def test_help_tells_what_a_script_does_and_names_all_options() -> None:
    EXAMPLES.check_help()


@pytest.mark.parametrize("folder", ["pytorch", "lightning", "inference"])
def test_readme_names_every_example(folder: str) -> None:
    Examples(folder, modules=("resnet.py",)).check_readme()


@pytest.mark.parametrize("rank_count", [1, 4])
def test_digits_prints_progress_on_rank_0_only(on: dict[int, Batch], rank_count: int) -> None:
    output = on[rank_count].output_of("digits")
    assert f"training on {rank_count} rank(s), 1347 images, 450 held back" in output
    assert f"weights are bitwise equal on all {rank_count} rank(s)" in output
    assert_loss_falls(output)
    assert printed_number(output, r"\((\d+) samples/s") > 0
    assert {line[:11] for line in output.splitlines()} == {"[0]<stdout>"}


def test_digits_reaches_its_accuracy_and_is_served_without_horovod(
    on: dict[int, Batch], exported: Path
) -> None:
    output = on[2].output_of("whole")
    assert printed_number(output, r"test accuracy (\S+)") >= 0.97
    assert "weights are bitwise equal on all 2 rank(s)" in output
    paths = sorted(exported.iterdir())
    assert [path.name for path in paths] == ["program.pt2", "script.ts", "weights.pt"]
    assert_served_without_horovod(*paths)


def test_digits_fails_below_the_demanded_accuracy(on: dict[int, Batch]) -> None:
    assert "accuracy is below 1.01" in on[1].failure_of("below")


@pytest.mark.parametrize(
    ("rank_count", "name"),
    [(3, "adasum"), (2, "powersgd"), (2, "sum"), (2, "sparse"), (2, "sparse as dense")],
)
def test_digits_learns_with_each_option(on: dict[int, Batch], rank_count: int, name: str) -> None:
    output = on[rank_count].output_of(name)
    assert f"training 1 model(s) on {rank_count} rank(s) each" in output
    assert "1 different model(s)" in output
    assert_loss_falls(output)


def test_adasum_needs_no_other_learning_rate_than_one_rank(on: dict[int, Batch]) -> None:
    output = on[2].output_of("rates")
    average, total, adasum = (
        printed_number(output, rf"{op} +0\.2 +(\S+)") for op in ("Average", "Sum", "Adasum")
    )
    # Sum equals Average at twice the rate; Adasum is nearly as good.
    assert total < adasum < (average + total) / 2


def test_digits_teams_train_a_model_each(on: dict[int, Batch]) -> None:
    output = on[4].output_of("teams")
    assert "training 2 model(s) on 2 rank(s) each" in output
    assert "2 different model(s)" in output
    assert_loss_falls(output)


def test_digits_need_a_rank_per_team(on: dict[int, Batch]) -> None:
    assert "2 teams need as many ranks; there are 1" in on[1].failure_of("few ranks")


def test_mixed_precision_learns_and_keeps_weights_equal(on: dict[int, Batch]) -> None:
    output = on[2].output_of("mixed")
    assert "weights are bitwise equal on all 2 rank(s)" in output
    assert_loss_falls(output)


def test_float16_scales_the_loss(on: dict[int, Batch]) -> None:
    output = on[2].output_of("float16")
    assert "weights are bitwise equal on all 2 rank(s)" in output
    assert printed_number(output, r"scale (\S+)") > 1


def test_uneven_data_leaves_equal_weights(on: dict[int, Batch]) -> None:
    output = on[3].output_of("uneven")
    steps = re.search(r"steps per epoch by rank: \[(.*)\]", output)
    assert steps
    counts = [int(count) for count in steps[1].split(", ")]
    assert counts == sorted(set(counts))  # the data is uneven
    assert len(counts) == 3
    assert "weights are bitwise equal on all 3 rank(s)" in output


def test_uneven_data_reaches_its_accuracy(on: dict[int, Batch]) -> None:
    assert printed_number(on[2].output_of("uneven"), r"test accuracy (\S+)") >= 0.95


def test_local_steps_reach_their_accuracy_with_few_bytes(on: dict[int, Batch]) -> None:
    output = on[2].output_of("local")
    assert printed_number(output, r"test accuracy (\S+)") >= 0.95
    assert "weights are bitwise equal on all 2 rank(s)" in output
    assert printed_number(output, r"(\S+) % of the bytes") <= 6


def test_synthetic_benchmark_reports_speed_per_rank_and_total(on: dict[int, Batch]) -> None:
    output = on[2].output_of("speed")
    assert "9,362 weights in 29 tensors" in output
    per_rank = printed_number(output, r"per rank: +(\S+) \+- \S+ img/s")
    assert printed_number(output, r"2 rank\(s\): +(\S+) \+-") == pytest.approx(2 * per_rank, abs=1)


def test_synthetic_benchmark_trains_the_real_resnet(on: dict[int, Batch]) -> None:
    assert "25,557,032 weights in 161 tensors" in on[2].output_of("resnet")


def test_imagenet_learns_on_synthetic_images(tmp_path: Path) -> None:
    options = ("--synthetic", "--small", "--epochs", "4", "--base-lr", "0.05", "--workers", "1")
    output = output_of(2, "imagenet.py", *options, "--checkpoint", tmp_path / "checkpoint.pt")
    assert_loss_falls(output)
    assert printed_number(output, r"epoch 4/4 .* accuracy (\S+)") > 0.3  # of ten classes


def test_imagenet_resumes_bitwise_where_it_was_killed(tmp_path: Path) -> None:
    checkpoint = tmp_path / "killed.pt"
    kill_after_two_epochs(*TINY, "--epochs", "1000000", "--checkpoint", checkpoint)
    saved = torch.load(checkpoint, weights_only=True)["epoch"]
    assert saved >= 2
    last = saved + 2

    resumed = output_of(2, "imagenet.py", *TINY, "--epochs", last, "--checkpoint", checkpoint)
    whole = tmp_path / "whole.pt"
    uninterrupted = output_of(2, "imagenet.py", *TINY, "--epochs", last, "--checkpoint", whole)
    assert f"resuming after epoch {saved}" in resumed
    assert f"epoch {saved}/{last}" not in resumed
    assert resumed.splitlines()[-1] == uninterrupted.splitlines()[-1]


def kill_after_two_epochs(*arguments: object) -> None:
    """Start imagenet.py on two ranks and kill rank 0, which writes, in the third epoch or later."""
    with subprocess.Popen(
        command(2, "imagenet.py", *arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        assert job.stdout
        try:
            printed = [line for _, line in zip(range(3), job.stdout, strict=False)]
            assert "epoch 2/" in printed[-1], printed
            ranks = psutil.Process(job.pid).children(recursive=True)
            (writer,) = [process for process in ranks if is_rank_0(process)]
            writer.kill()
            printed += job.stdout.readlines()
            assert job.wait(timeout=TIMEOUT_S) != 0
        finally:
            job.terminate()
    assert "rank 0 on localhost" in "".join(printed), printed


def is_rank_0(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.environ().get("HOROVOD_RANK") == "0"
    return False  # it has ended
