"""The Python examples of the pages, run unchanged on two ranks; links and commands of the pages."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "docs" / "clusters.md"
COMMAND_LINE = ROOT / "benchmarks" / "command_line.py"
# Or needs what only the environment of tests/engines has.
STARTS_PROCESSES = re.compile(
    r"horovod\.run\(|horovod\.(lightning|ray|spark|trackers)\b|\b(ray|pyspark)\b|RendezvousServer"
)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"\bpython ((?:examples|benchmarks)/[\w/]+\.py)([^\n`|#]*)")
OPTION = re.compile(r"(?<=\s)--?[a-z][\w-]*")
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NEEDS_MXNET = pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed")
EXAMPLES = [
    pytest.param(
        code, id=f"{page.stem}-{number}", marks=NEEDS_MXNET if "import mxnet" in code else ()
    )
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for number, code in enumerate(BLOCK.findall(page.read_text()))
    if not STARTS_PROCESSES.search(code)  # see test_run.py and tests/engines
]


def test_readme_leads_to_every_page():
    text = PAGES[0].read_text()
    assert [page.name for page in PAGES[2:] if f"(docs/{page.name})" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_commands_and_links_of_a_page_lead_somewhere(page):
    text = page.read_text()
    for script, arguments in COMMAND.findall(text):
        code = (ROOT / script).read_text()
        if "from command_line import" in code:
            code += COMMAND_LINE.read_text()
        assert [option for option in OPTION.findall(arguments) if f'"{option}"' not in code] == []
    for name, anchor in LINK.findall(text):
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), (name, anchor)


def anchors(page):
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_there_are_examples():
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("code", EXAMPLES)
def test_example_runs_on_two_ranks(tmp_path, code):
    script = tmp_path / "example.py"
    script.write_text(code)
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", "2"]
    job = subprocess.run(
        [*launcher, sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert "Traceback" not in job.stderr


def test_the_launcher_of_the_guide(tmp_path):
    (code,) = [code for code in BLOCK.findall(CLUSTERS.read_text()) if "RendezvousServer" in code]
    (tmp_path / "launcher.py").write_text(code)
    (tmp_path / "train.py").write_text(
        "import horovod.numpy as hvd, numpy as np\n"
        "hvd.init()\n"
        "print(f\"sum {hvd.allreduce(np.ones(1), op=hvd.Sum, name='ones')}\")\n"
    )
    job = subprocess.run(
        [sys.executable, "launcher.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("sum [2.]") == 2  # both ranks' lines in one pipe
