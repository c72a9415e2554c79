"""Hyperparameters: values as written, ranges, the grid, placeholders."""

from __future__ import annotations

import textwrap
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.launch.experiment.document import ExperimentError
from horovod.launch.experiment.parameters import (
    Parameter,
    grid,
    placeholders,
    replaced,
)
from horovod.launch.experiment.schema import read_experiment


def read(text: str) -> tuple[Parameter, ...]:
    """What a file with these parameters holds."""
    inner = textwrap.indent(text, "    ")
    train = f"project: a\ntrain:\n  resources: {{}}\n  run: x\n  parameters:\n{inner}\n"
    return read_experiment(train).parameters


def values(text: str) -> tuple[str, ...]:
    (parameter,) = read(f"x: {text}")
    return parameter.values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1e-6, 0.10, +1, 0x10]", ("1e-6", "0.10", "+1", "0x10")),
        ("[yes, 'no', 2018-01-01, a b]", ("yes", "no", "2018-01-01", "a b")),
        ("[1, 1]", ("1", "1")),
        ("{range: {min: 2, max: 6, step: 1}}", ("2", "3", "4", "5", "6")),
        ("{range: {min: 0.1, max: 0.3, step: 0.1}}", ("0.1", "0.2", "0.3")),
        ("{range: {min: 1, max: 2, step: 0.4}}", ("1.0", "1.4", "1.8")),
        ("{range: {min: -1, max: 1, step: 2}}", ("-1", "1")),
        ("{range: {min: 1e-7, max: 3e-7, step: 1e-7}}", ("0.0000001", "0.0000002", "0.0000003")),
        ("{range: {min: 3, max: 3, step: 5}}", ("3",)),
    ],
)
def test_the_values_of_a_parameter(text: str, expected: tuple[str, ...]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize(
    ("text", "path", "what"),
    [
        ("x: 1", "x", "found 1, expected a list of values, or range: {min, max, step}"),
        ("x: []", "x", "found an empty list, expected a list of values"),
        ("x: [[1]]", "x[0]", "found a list of 1, expected a number or a text"),
        ("x: [1, ~]", "x[1]", "found nothing, expected a number or a text"),
        ('x: ["\\0"]', "x[0]", "without NUL characters"),
        ('x: ["\\uD800"]', "x[0]", "without surrogates"),
        ("x: {}", "x.range", "found nothing, expected a list of values, or range"),
        ("x: {min: 1, range: {min: 1, max: 1, step: 1}}", "x.min", "unknown field; expected range"),
        ("x: {range: [1, 2]}", "x.range", "found a list of 2, expected a mapping with min, max"),
        ("x: {range: {min: 1, max: 2}}", "x.range.step", "found nothing, expected a number"),
        ("x: {range: {min: 1, max: 2, step: 0}}", "x.range.step", "found 0, expected a number ab"),
        ("x: {range: {min: 2, max: 1, step: 1}}", "x.range.max", "expected a number of at least"),
        ("x: {range: {min: a, max: 1, step: 1}}", "x.range.min", "found the text 'a', expected"),
        ("x: {range: {min: 0, max: 1e99, step: 1}}", "x.range.max", "at most 12 digits"),
        ("x: {range: {min: 0, max: .inf, step: 1}}", "x.range.max", "at most 12 digits"),
        ("x: {range: {min: 0, max: 1, step: 1e-13}}", "x.range.step", "at most 12 digits"),
        ("x: {range: {min: 0, max: 9e9, step: 1e-9}}", "x.range", "values, expected at most 10000"),
        ("path: [1]", "path", "would replace the variable PATH"),
        ("horovod-rank: [1]", "horovod-rank", "would replace the variable HOROVOD_RANK"),
        ("output-dir: [1]", "output-dir", "would replace the variable OUTPUT_DIR"),
        ("a-b: [1]\na_b: [2]", "a_b", "is A_B in the environment, as a-b is"),
        ("1a: [1]", "1a", "expected a name of letters"),
        ("{}", "", "found an empty mapping, expected a mapping from names"),
        ("[1]", "", "found a list of 1, expected a mapping from names"),
        (f"a: {[0] * 101}\nb: {[0] * 100}", "", "found 10100 combinations, expected at most"),
    ],
)
def test_wrong_parameters(text: str, path: str, what: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        read(text)
    (problem,) = caught.value.problems
    assert problem.path == f"train.parameters.{path}".rstrip(".")
    assert what in problem.text


@settings(deadline=None)
@given(
    low=st.decimals(min_value=-1000, max_value=1000, places=3),
    step=st.decimals(min_value=Decimal("0.001"), max_value=10, places=3),
    count=st.integers(min_value=1, max_value=50),
    rest=st.decimals(min_value=0, max_value=Decimal("0.9"), places=1),
)
def test_a_range_has_every_step_up_to_its_end(
    low: Decimal, step: Decimal, count: int, rest: Decimal
) -> None:
    high = low + step * (count - 1) + step * rest
    texts = values(f"{{range: {{min: {low}, max: {high:f}, step: {step}}}}}")
    assert [Decimal(text) for text in texts] == [low + step * index for index in range(count)]


def test_the_grid_changes_the_last_parameter_fastest() -> None:
    parameters = read("a: [1, 2]\nb: [x, y]")
    assert [tuple(values.values()) for values in grid(parameters)] == [
        ("1", "x"),
        ("1", "y"),
        ("2", "x"),
        ("2", "y"),
    ]
    assert list(grid(())) == [{}]


def test_placeholders_are_replaced_textually_and_once() -> None:
    line = "{{a}} {{ a-b }} {{\ta }} {{ .x }} { {a}} $A"
    assert placeholders(line) == ["a", "a-b", "a"]
    assert replaced(line, {"a": "{{a-b}}\\1", "a-b": "'"}) == (
        "{{a-b}}\\1 ' {{a-b}}\\1 {{ .x }} { {a}} $A"
    )
