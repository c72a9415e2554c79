"""The notebooks among the tutorials run from top to bottom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="make test-docs has it")
nbclient = pytest.importorskip("nbclient", reason="make test-docs has it")

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("pytorch", "[(0."),
        ("elastic", "[(5, [2, 2, 1, 1, 1])]"),
        ("slow", "2 ranks, last heard of"),
    ],
)
def test_notebook(name: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOROVOD_RECORDER_DIR", str(tmp_path / "recordings"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(ROOT / "docs" / "tutorials" / f"{name}.ipynb", 4)
    nbclient.NotebookClient(
        notebook,
        timeout=500,
        startup_timeout=300,
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    texts = [output.get("text") or output["data"]["text/plain"] for output in outputs]
    assert printed in "".join(texts)
