"""The MXNet examples run under horovodrun and print the expected results."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from example_jobs import Examples, assert_loss_falls, printed_number

pytestmark = pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed")

MXNET = Examples("mxnet")


def test_help_tells_what_a_script_does_and_names_all_options() -> None:
    MXNET.check_help()


def test_readme_names_every_example() -> None:
    MXNET.check_readme()


def test_digits_prints_progress_on_rank_0_only() -> None:
    output = MXNET.output_of(3, "digits.py", "--epochs", "2", "--min-accuracy", "0")
    assert "training on 3 rank(s), 1347 images, 450 held back" in output
    assert_loss_falls(output)
    assert {line[:11] for line in output.splitlines()} == {"[0]<stdout>"}


def test_digits_reaches_its_accuracy() -> None:
    output = MXNET.output_of(2, "digits.py")
    assert printed_number(output, r"test accuracy (\S+)") >= 0.96
    assert "weights are bitwise equal on all 2 rank(s)" in output


def test_digits_fails_below_the_demanded_accuracy() -> None:
    job = MXNET.run(1, "digits.py", "--epochs", "1", "--min-accuracy", "1.01")
    assert job.returncode != 0
    assert "accuracy is below 1.01" in job.stdout


def test_imagenet_learns_on_made_up_images(tmp_path: Path) -> None:
    weights = tmp_path / "resnet.params"
    options = ("--small", "--images", "128", "--batch-size", "16", "--checkpoint", weights)
    output = MXNET.output_of(2, "imagenet.py", *options, "--epochs", "4", "--warmup-epochs", "1")
    assert "2 rank(s), 4 steps of 16 images in an epoch" in output
    assert "weights are bitwise equal on all 2 rank(s)" in output
    assert_loss_falls(output)
    assert weights.stat().st_size > 0
