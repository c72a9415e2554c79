"""The JAX examples run under horovodrun and print the expected results."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from example_jobs import (
    BATCH_TIMEOUT_S,
    Batch,
    Examples,
    assert_loss_falls,
    printed_number,
)

pytest.importorskip("jax", reason="JAX is not installed")
pytest.importorskip("optax", reason="optax is not installed")

has_flax = find_spec("flax") is not None
JAX = Examples("jax", () if has_flax else ("flax_digits.py",))
FLAX = {"flax": "jax/flax_digits.py --epochs 2 --min-accuracy 0.8"} if has_flax else {}
ON_TWO_RANKS = Batch(
    2,
    {
        "digits": "jax/digits.py",
        "transformer": "jax/transformer.py --steps 40 --report-every 10 --letters 5 --max-loss 3 "
        "--compression bf16",
        **FLAX,
    },
)
ON_THREE_RANKS = Batch(
    3,
    {
        "digits": "jax/digits.py --epochs 2 --min-accuracy 0",
        "below": "jax/digits.py --epochs 1 --min-accuracy 1.01",
    },
)

pytestmark = pytest.mark.timeout(BATCH_TIMEOUT_S + 20)


def test_help_tells_what_a_script_does_and_names_all_options() -> None:
    JAX.check_help()


def test_readme_names_every_example() -> None:
    JAX.check_readme()


def test_digits_prints_progress_on_rank_0_only() -> None:
    output = ON_THREE_RANKS.output_of("digits")
    assert "training on 3 rank(s), 1347 images, 450 held back" in output
    assert_loss_falls(output)
    assert {line[:11] for line in output.splitlines()} == {"[0]<stdout>"}


def test_digits_reaches_its_accuracy() -> None:
    output = ON_TWO_RANKS.output_of("digits")
    assert printed_number(output, r"test accuracy (\S+)") >= 0.96
    assert "weights are bitwise equal on all 2 rank(s)" in output


def test_digits_fails_below_the_demanded_accuracy() -> None:
    assert "accuracy is below 1.01" in ON_THREE_RANKS.failure_of("below")


@pytest.mark.skipif(not has_flax, reason="flax is not installed")
def test_flax_reaches_its_accuracy() -> None:
    output = ON_TWO_RANKS.output_of("flax")
    assert_loss_falls(output)
    assert "networks are bitwise equal on all 2 rank(s)" in output


def test_transformer_learns_from_what_all_ranks_read() -> None:
    output = ON_TWO_RANKS.output_of("transformer")
    assert_loss_falls(output)
    assert "weights are bitwise equal on all 2 rank(s)" in output
