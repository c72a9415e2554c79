"""The TensorFlow and Keras examples run under horovodrun and print the expected results."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from example_jobs import (
    BATCH_TIMEOUT_S,
    Batch,
    Examples,
    assert_loss_falls,
    assert_served_without_horovod,
    printed_number,
)

pytest.importorskip("tensorflow")

TENSORFLOW, KERAS = Examples("tensorflow"), Examples("keras")
# It keeps a model's state outside of the model, so there is more to restore.
RESTARTED = "tensorflow" if find_spec("jax") is None else "jax"
HAS_ESTIMATORS = find_spec("tensorflow_estimator") is not None
ON_EACH_BACKEND = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                find_spec(name) is None or find_spec("jax") is None,
                reason=f"Keras 2 has no backend but TensorFlow, or {name} is not installed",
            ),
        )
        for name in ("jax", "torch")
    ]
    + ["tensorflow"],
)


EXPORTS = {
    "digits.py": (TENSORFLOW, "saved_model"),
    "digits_session.py": (TENSORFLOW, "graph.pb"),
    "digits_fit.py": (KERAS, "digits.keras"),
}


pytestmark = pytest.mark.timeout(BATCH_TIMEOUT_S + 20)

ON_THREE_RANKS = Batch(
    3,
    {
        "digits": "tensorflow/digits.py --epochs 2 --min-accuracy 0",
        "below": "tensorflow/digits.py --epochs 1 --min-accuracy 1.01",
        "estimator": "tensorflow/digits_estimator.py",
    },
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where networks are exported, and checkpoints are written."""
    return tmp_path_factory.mktemp("written")


@pytest.fixture(scope="module")
def on_two_ranks(folder: Path) -> Batch:
    """What needs no process of its own, as a session does; TensorFlow has one number of threads."""
    commands = {
        "digits": f"tensorflow/digits.py --export {folder}/tensorflow-saved_model",
        "speed": "tensorflow/synthetic_benchmark.py --small --batch-size 4 --warmup-batches 1 "
        "--iterations 2 --batches-per-iteration 2 --fp16-allreduce --threads 1",
        "MobileNet": "tensorflow/synthetic_benchmark.py --model MobileNetV2 --batch-size 2 "
        "--image-size 96 --warmup-batches 0 --iterations 1 --batches-per-iteration 1 --threads 1",
        "word2vec": "tensorflow/word2vec.py --words 200 --sentences 1000 --steps 160",
        "advanced": f"keras/digits_advanced.py --checkpoints {folder}/advanced --fp16-allreduce",
    }
    return Batch(2, commands)


@pytest.fixture(scope="module")
def to_restart(folder: Path) -> Batch:
    """Keras on the backend that has more to restore."""
    commands = {
        "fit": f"keras/digits_fit.py --export {folder}/{RESTARTED}-digits.keras",
        "first": f"keras/digits_advanced.py --checkpoints {folder}/restarted "
        "--min-accuracy 0 --warmup-epochs 1 --epochs 1",
    }
    return Batch(2, commands, {"KERAS_BACKEND": RESTARTED})


@pytest.fixture(scope="module")
def trained(
    folder: Path, on_two_ranks: Batch, to_restart: Batch
) -> Callable[..., tuple[str, Path]]:
    """Train a script on 2 ranks, once for all tests: its output and the path of its export."""

    @cache
    def run(script: str, backend: str = "tensorflow") -> tuple[str, Path]:
        examples, name = EXPORTS[script]
        path = folder / f"{backend}-{name}"
        if script == "digits.py":
            return on_two_ranks.output_of("digits"), path
        if backend == "jax":
            return to_restart.output_of("fit"), path
        options = ["--export", path]
        if script == "digits_session.py":
            options += ["--checkpoints", folder / "session"]
        return examples.output_of(2, script, *options, KERAS_BACKEND=backend), path

    return run


@pytest.mark.parametrize("examples", [TENSORFLOW, KERAS], ids=["tensorflow", "keras"])
def test_help_tells_what_a_script_does_and_names_all_options(examples: Examples) -> None:
    examples.check_help()


@pytest.mark.parametrize("examples", [TENSORFLOW, KERAS], ids=["tensorflow", "keras"])
def test_readme_names_every_example(examples: Examples) -> None:
    examples.check_readme()


def test_digits_prints_progress_on_rank_0_only() -> None:
    output = ON_THREE_RANKS.output_of("digits")
    assert "training on 3 rank(s), 1347 images, 450 held back" in output
    assert "weights are bitwise equal on all 3 rank(s)" in output
    assert_loss_falls(output)
    assert {line[:11] for line in output.splitlines()} == {"[0]<stdout>"}


def test_digits_reaches_its_accuracy(trained: Callable[..., tuple[str, Path]]) -> None:
    output, _ = trained("digits.py")
    assert printed_number(output, r"test accuracy (\S+)") >= 0.97
    assert "weights are bitwise equal on all 2 rank(s)" in output


def test_digits_fails_below_the_demanded_accuracy() -> None:
    assert "accuracy is below 1.01" in ON_THREE_RANKS.failure_of("below")


def test_session_reaches_its_accuracy(trained: Callable[..., tuple[str, Path]]) -> None:
    output, _ = trained("digits_session.py")
    assert printed_number(output, r"test accuracy (\S+)") >= 0.95
    assert "after step 320 on 2 rank(s)" in output


def test_session_goes_on_from_rank_0s_checkpoint(
    trained: Callable[..., tuple[str, Path]], folder: Path
) -> None:
    checkpoints = folder / "session"
    first, _ = trained("digits_session.py")
    assert "after step 320 on 2 rank(s)" in first
    assert (checkpoints / "model.ckpt-320.index").exists()
    # Rank 1 has no checkpoint: without the step from rank 0 it would make 320 steps more.
    second = TENSORFLOW.output_of(
        2, "digits_session.py", "--checkpoints", checkpoints, "--steps", "720"
    )
    assert "after step 360 on 2 rank(s)" in second


@pytest.mark.skipif(not HAS_ESTIMATORS, reason="TensorFlow 2.15 is the last with Estimators")
def test_estimator_trains_saves_on_rank_0_and_evaluates(tmp_path: Path) -> None:
    own, others = tmp_path / "own", tmp_path / "others"
    others.mkdir()
    output = TENSORFLOW.output_of(2, "digits_estimator.py", "--model-dir", own, TMPDIR=str(others))
    assert printed_number(output, r"test accuracy (\S+)") >= 0.95
    assert "after step 320" in output
    assert (own / "model.ckpt-320.index").exists()
    assert list(others.rglob("model.ckpt*")) == []


@pytest.mark.skipif(HAS_ESTIMATORS, reason="this TensorFlow has Estimators")
def test_estimator_says_what_it_needs() -> None:
    told = ON_THREE_RANKS.failure_of("estimator")
    assert "has no Estimators; 2.15 is the last one that has" in told


def test_synthetic_benchmark_reports_speed_per_rank_and_total(on_two_ranks: Batch) -> None:
    output = on_two_ranks.output_of("speed")
    assert "2 rank(s), 322 weights in 5 tensors" in output
    per_rank = printed_number(output, r"per rank: +(\S+) \+- \S+ img/s")
    assert printed_number(output, r"2 rank\(s\): +(\S+) \+-") == pytest.approx(2 * per_rank, abs=1)


def test_synthetic_benchmark_trains_a_network_of_keras(on_two_ranks: Batch) -> None:
    assert "3,504,872 weights in 158 tensors" in on_two_ranks.output_of("MobileNet")


@ON_EACH_BACKEND
def test_fit_reaches_its_accuracy(backend: str, trained: Callable[..., tuple[str, Path]]) -> None:
    output, _ = trained("digits_fit.py", backend)
    assert printed_number(output, r"test accuracy (\S+)") >= 0.96
    assert f"with {backend}, 2 rank(s)" in output
    assert "weights are bitwise equal on all 2 rank(s)" in output


def test_a_restarted_job_goes_on_from_rank_0s_checkpoint(to_restart: Batch, folder: Path) -> None:
    checkpoints = folder / "restarted"
    first = to_restart.output_of("first")
    assert "from epoch 1 to 1" in first
    accuracy = printed_number(first, r"test accuracy (\S+)")
    assert [path.name for path in checkpoints.iterdir()] == ["epoch-001.keras"]

    options = ("--checkpoints", checkpoints, "--min-accuracy", "0", "--warmup-epochs", "1")
    second = KERAS.output_of(
        2, "digits_advanced.py", *options, "--epochs", "2", KERAS_BACKEND=RESTARTED
    )
    assert "from epoch 2 to 2" in second
    assert printed_number(second, r"test accuracy (\S+)") > accuracy - 0.1
    assert "weights are bitwise equal on all 2 rank(s)" in second
    assert (checkpoints / "epoch-002.keras").exists()


def test_advanced_training_reaches_its_accuracy(on_two_ranks: Batch) -> None:
    assert printed_number(on_two_ranks.output_of("advanced"), r"test accuracy (\S+)") >= 0.95


def test_what_is_exported_is_served_without_horovod(
    trained: Callable[..., tuple[str, Path]],
) -> None:
    assert_served_without_horovod(*(trained(script)[1] for script in EXPORTS))


def test_word2vec_finds_topics_with_sparse_gradients(on_two_ranks: Batch) -> None:
    output = on_two_ranks.output_of("word2vec")
    assert printed_number(output, r"same topic: (\S+)") >= 0.9
    # The rows of both ranks, 64 each, not a table of 200.
    assert "rows in the gradient 128" in output
    assert "tables are bitwise equal on all 2 rank(s)" in output
    assert_loss_falls(output)
