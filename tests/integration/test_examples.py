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
    ROOT,
    TIMEOUT_S,
    Examples,
    assert_loss_falls,
    assert_served_without_horovod,
    printed_number,
)

EXAMPLES = Examples("pytorch", modules=("resnet.py",))
QUICK = ("--epochs", "2", "--min-accuracy", "0")
TINY = ("--synthetic", "--small", "--synthetic-images", "96", "--batch-size", "8", "--threads", "1")

command, run, output_of = EXAMPLES.command, EXAMPLES.run, EXAMPLES.output_of


def test_help_tells_what_a_script_does_and_names_all_options() -> None:
    EXAMPLES.check_help()


@pytest.mark.parametrize("folder", ["pytorch", "lightning", "inference"])
def test_readme_names_every_example(folder: str) -> None:
    Examples(folder, modules=("resnet.py",)).check_readme()


@pytest.mark.parametrize("rank_count", [1, 4])
def test_digits_prints_progress_on_rank_0_only(rank_count: int) -> None:
    output = output_of(rank_count, "digits.py", *QUICK)
    assert f"training on {rank_count} rank(s), 1347 images, 450 held back" in output
    assert f"weights are bitwise equal on all {rank_count} rank(s)" in output
    assert_loss_falls(output)
    assert printed_number(output, r"\((\d+) samples/s") > 0
    assert {line[:11] for line in output.splitlines()} == {"[0]<stdout>"}


def test_digits_reaches_its_accuracy_and_is_served_without_horovod(tmp_path: Path) -> None:
    output = output_of(2, "digits.py", "--export", tmp_path)
    assert printed_number(output, r"test accuracy (\S+)") >= 0.97
    assert "weights are bitwise equal on all 2 rank(s)" in output
    exported = sorted(tmp_path.iterdir())
    assert [path.name for path in exported] == ["program.pt2", "script.ts", "weights.pt"]
    assert_served_without_horovod(*exported)


def test_digits_fails_below_the_demanded_accuracy() -> None:
    job = run(1, "digits.py", "--epochs", "1", "--min-accuracy", "1.01")
    assert job.returncode != 0
    assert "accuracy is below 1.01" in job.stdout


@pytest.mark.parametrize(
    ("rank_count", "options"),
    [
        (3, "--op Adasum"),
        (2, "--compression powersgd"),
        (2, "--op Sum --compression fp16 --groups 2"),
        (2, "--sparse-embedding --backward-passes 2 --predivide-factor 2 --groups 3"),
        (2, "--sparse-embedding --sparse-as-dense --compression fp16 --backward-passes 3"),
    ],
)
def test_digits_learns_with_each_option(rank_count: int, options: str) -> None:
    learnt = ("--epochs", "4", "--min-accuracy", "0.6")
    output = output_of(rank_count, "digits_options.py", *learnt, *options.split())
    assert f"training 1 model(s) on {rank_count} rank(s) each" in output
    assert "1 different model(s)" in output
    assert_loss_falls(output)


def test_adasum_needs_no_other_learning_rate_than_one_rank() -> None:
    options = ("--rates", "0.2", "--steps", "60", "--ops", "Average", "Sum", "Adasum")
    output = output_of(2, "adasum.py", *options)
    average, total, adasum = (
        printed_number(output, rf"{op} +0\.2 +(\S+)") for op in ("Average", "Sum", "Adasum")
    )
    # Sum equals Average at twice the rate; Adasum is nearly as good.
    assert total < adasum < (average + total) / 2


def test_digits_teams_train_a_model_each() -> None:
    output = output_of(4, "digits_options.py", *QUICK, "--teams", "2")
    assert "training 2 model(s) on 2 rank(s) each" in output
    assert "2 different model(s)" in output
    assert_loss_falls(output)


def test_digits_need_a_rank_per_team() -> None:
    job = run(1, "digits_options.py", *QUICK, "--teams", "2")
    assert job.returncode != 0
    assert "2 teams need as many ranks; there are 1" in job.stderr


def test_mixed_precision_learns_and_keeps_weights_equal() -> None:
    output = output_of(2, "amp_accumulation.py", *QUICK, "--accumulate", "3")
    assert "weights are bitwise equal on all 2 rank(s)" in output
    assert_loss_falls(output)


def test_float16_scales_the_loss() -> None:
    options = ("--epochs", "1", "--min-accuracy", "0", "--dtype", "float16", "--images", "96")
    output = output_of(2, "amp_accumulation.py", *options)
    assert "weights are bitwise equal on all 2 rank(s)" in output
    assert printed_number(output, r"scale (\S+)") > 1


def test_uneven_data_leaves_equal_weights() -> None:
    output = output_of(3, "uneven_data.py", *QUICK)
    steps = re.search(r"steps per epoch by rank: \[(.*)\]", output)
    assert steps
    counts = [int(count) for count in steps[1].split(", ")]
    assert counts == sorted(set(counts))  # the data is uneven
    assert len(counts) == 3
    assert "weights are bitwise equal on all 3 rank(s)" in output


def test_uneven_data_reaches_its_accuracy() -> None:
    assert printed_number(output_of(2, "uneven_data.py"), r"test accuracy (\S+)") >= 0.95


def test_synthetic_benchmark_reports_speed_per_rank_and_total() -> None:
    sizes = "--small --batch-size 4 --warmup-batches 1 --iterations 2 --batches-per-iteration 2"
    output = output_of(2, "synthetic_benchmark.py", *sizes.split(), "--fp16-allreduce")
    assert "9,362 weights in 29 tensors" in output
    per_rank = printed_number(output, r"per rank: +(\S+) \+- \S+ img/s")
    assert printed_number(output, r"2 rank\(s\): +(\S+) \+-") == pytest.approx(2 * per_rank, abs=1)


def test_synthetic_benchmark_trains_the_real_resnet() -> None:
    sizes = "--batch-size 2 --image-size 64 --warmup-batches 0 --iterations 1"
    output = output_of(2, "synthetic_benchmark.py", *sizes.split(), "--batches-per-iteration", "1")
    assert "25,557,032 weights in 161 tensors" in output


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
