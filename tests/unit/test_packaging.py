"""What is released, and the workflows that release it, agree with each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import horovod

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job.get("steps", [])]


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text() + (ROOT / "tools/wheels.mk").read_text()
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", text, re.MULTILINE))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_make_has(workflow: Path) -> None:
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    for command in commands:
        make, *targets = command.split()
        assert make == "make"
        assert targets
        assert set(targets) <= make_targets()


def test_there_is_a_workflow_for_each_purpose() -> None:
    assert {path.stem for path in WORKFLOWS} >= {"build", "release", "test"}


def test_a_release_needs_no_token() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert workflow["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()


def test_the_citation_names_this_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == horovod.__version__


def test_the_installation_guide_names_wheels_of_this_version() -> None:
    named = re.findall(
        r"horovod-([0-9a-z.]+)(?=-cp|\.tar)", (ROOT / "docs/installing.md").read_text()
    )
    assert set(named) == {horovod.__version__}


def test_libraries_do_not_say_where_they_were_built() -> None:
    (library,) = Path(horovod.__file__).parent.glob("_native.*.so")
    assert re.findall(rb"(?<![\w.])/[\w./-]*/engine/\w+/", library.read_bytes()) == []


def test_wheels_export_what_bindings_declare() -> None:
    """The linker of the wheels hides all but these names."""
    names = re.search(r"global: (.*)\n", (ROOT / "tools/exported.map").read_text())
    assert names is not None
    patterns = [re.escape(name).replace(r"\*", ".*") for name in re.findall(r"[\w*]+", names[1])]
    source = "".join(path.read_text() for path in sorted((ROOT / "bindings").rglob("*.cc")))
    exported = re.findall(
        r'(?:visibility\("default"\)\]\]|HOROVOD_EXPORT)[\w\s:*]*?(\w+)\(', source
    )
    assert len(exported) > 5
    for name in exported:
        assert any(re.fullmatch(pattern, name) for pattern in patterns), name
