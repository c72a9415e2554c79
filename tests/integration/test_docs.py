"""The Python examples of the pages, run unchanged on two ranks; links and commands of the pages."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND_LINE = ROOT / "benchmarks" / "command_line.py"
# Or needs what only the environment of tests/engines has.
STARTS_PROCESSES = re.compile(
    r"horovod\.run\(|horovod\.(lightning|ray|spark|trackers)\b|\b(ray|pyspark)\b|RendezvousServer"
)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"\bpython ((?:examples|benchmarks)/[\w/]+\.py)([^\n`|#]*)")
OPTION = re.compile(r"(?<=\s)--?[a-z][\w-]*")
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "examples" / "README.md",
    *sorted(DOCS.rglob("*.md")),
    *sorted(DOCS.rglob("*.ipynb")),
]
RUN_SCRIPTS = ROOT / "tests" / "support" / "run_scripts.py"
IMPORTED = re.compile(r"^(?:import|from) (jax|keras|mxnet|tensorflow|torch)\b", re.MULTILINE)


def framework_of(code: str) -> str:
    """The framework of an example: those of a framework run in one job."""
    if "jax_num_cpu_devices" in code:
        return "jax_on_two_devices"  # a process has one number of them
    found = IMPORTED.search(code)
    return {"keras": "tensorflow"}.get(found[1], found[1]) if found else "numpy"


EXAMPLES: dict[str, dict[str, str]] = {}
for _page in sorted(DOCS.glob("*.md")):
    for _number, _code in enumerate(BLOCK.findall(_page.read_text())):
        if not STARTS_PROCESSES.search(_code):  # see test_run.py and tests/engines
            EXAMPLES.setdefault(framework_of(_code), {})[f"{_page.stem}_{_number}.py"] = _code


def test_readme_and_the_site_lead_to_every_page():
    readme, site = PAGES[0].read_text(), (ROOT / "mkdocs.yml").read_text()
    pages = [page.relative_to(DOCS) for page in PAGES[2:]]
    tutorials = (DOCS / "tutorials" / "index.md").read_text()
    for page in pages:
        assert f" {page.with_suffix('.md')}\n" in site, page
        if page.parent.name == "tutorials":
            assert page.stem == "index" or f"({page.name})" in tutorials, page
        else:
            assert f"(docs/{page})" in readme, page


def test_the_chart_shows_the_kept_figures(tmp_path):
    chart = ROOT / "benchmarks" / "chart.py"
    figures = ROOT / "benchmarks" / "results" / "training.json"
    subprocess.run(
        [sys.executable, chart, figures, tmp_path / "chart.svg"], check=True, timeout=500
    )
    assert (tmp_path / "chart.svg").read_text() == (DOCS / "assets" / "training.svg").read_text()


def test_readme_is_short():
    assert len(PAGES[0].read_text().splitlines()) <= 150


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
    assert {"jax", "numpy", "tensorflow", "torch"} <= EXAMPLES.keys()
    assert sum(map(len, EXAMPLES.values())) >= 20


@pytest.mark.parametrize("framework", EXAMPLES)
def test_examples_run_on_two_ranks(tmp_path, framework):
    needed = framework.partition("_")[0]
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    for name, code in EXAMPLES[framework].items():
        (tmp_path / name).write_text(code)
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", "2"]
    job = subprocess.run(
        [*launcher, sys.executable, str(RUN_SCRIPTS), *EXAMPLES[framework]],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert "Traceback" not in job.stderr
    for name in EXAMPLES[framework]:
        assert job.stdout.count(f"status 0 of {name}\n") == 2, job.stdout


def test_the_launcher_of_the_guide(tmp_path):
    blocks = BLOCK.findall((DOCS / "clusters.md").read_text())
    (code,) = [code for code in blocks if "RendezvousServer" in code]
    (tmp_path / "launcher.py").write_text(code)
    (tmp_path / "train.py").write_text(
        "import horovod.numpy as hvd, numpy as np\n"
        "hvd.init()\n"
        "print(f\"sum {hvd.allreduce(np.ones(1), op=hvd.Sum, name='ones')}\")\n"
    )
    job = subprocess.run(
        [sys.executable, "launcher.py"], cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("sum [2.]") == 2  # both ranks' lines in one pipe
