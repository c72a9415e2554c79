"""Pages of the site that other files of the repository hold; MkDocs calls this (mkdocs.yml).

README is the first page. Notebooks become pages with their outputs. Each public module has a page
of the API. A file outside of docs that a page links to, such as an example, becomes a page too.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
NAMED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples.md",
}
LINK = re.compile(r"(\]\()(?!\w+:)([^)#\s]+)(#[^)]*)?\)")
INTERNAL = {"autotune", "common", "core", "launch", "metrics", "rendezvous", "settings", "trace"}
PARTS = {
    "keras": ("callbacks", "elastic"),
    "jax": ("elastic",),
    "ray": ("elastic", "elastic_v2", "ray_logger"),
    "spark": ("keras", "torch", "lightning", "common.store", "common.backend", "task"),
    "tensorflow": ("elastic", "keras", "keras.callbacks", "data.compute_service"),
    "torch": ("elastic", "elastic.state", "elastic.sampler"),
}


def public_modules() -> list[str]:
    """Names of the modules below ``horovod`` that programs import."""
    source = ROOT / "src" / "horovod"
    names = {path.stem for path in source.glob("*.py")}
    names |= {path.parent.name for path in source.glob("*/__init__.py")}
    return sorted(name for name in names - INTERNAL if not name.startswith("_"))


def on_config(config: Any) -> Any:
    """Put the pages of the API into the navigation."""
    api: list[Any] = [{"horovod": "api/horovod.md"}]
    api += [{f"horovod.{name}": f"api/{name}.md"} for name in public_modules()]
    for section in config.nav:
        for entry in next(iter(section.values())):
            if entry == {"API": "api/"}:
                entry["API"] = api
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages whose text is elsewhere."""

    def add(name: str, text: str) -> None:
        files.append(File.generated(config, name, content=text))

    add("api/horovod.md", api_page("horovod", ()))
    for name in public_modules():
        add(f"api/{name}.md", api_page(f"horovod.{name}", PARTS.get(name, ())))
    for path in DOCS.rglob("*.ipynb"):
        add(path.relative_to(DOCS).with_suffix(".md").as_posix(), notebook_page(path))
    waiting = [*(ROOT / name for name in NAMED), *DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]
    done: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        text = path.read_text()
        if DOCS not in path.parents:
            add(page_of(path), text if path.suffix == ".md" else code_page(path, text))
        if path.suffix in (".md", ".ipynb"):
            waiting += linked_files(path, text)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to files of the repository to their pages."""
    here = source_of(page.file.src_uri)
    folder = PurePosixPath(page.file.src_uri).parent

    def lead(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(here.parent / found[2]))
        if not target.is_file():
            return found[0]
        name = os.path.relpath(page_of(target), folder)
        return f"{found[1]}{name}{found[3] or ''})"

    return LINK.sub(lead, markdown)


def source_of(page: str) -> Path:
    """The file of the repository that has the text of a page."""
    names = {name: source for source, name in NAMED.items()}
    return ROOT / names.get(page, f"docs/{page}")


def page_of(path: Path) -> str:
    """The page that shows a file of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if DOCS in path.parents:
        page = path.relative_to(DOCS)
        return (page.with_suffix(".md") if page.suffix == ".ipynb" else page).as_posix()
    return NAMED.get(name, f"{name}.md")


def linked_files(path: Path, text: str) -> list[Path]:
    """The files outside of docs that a page of the repository links to."""
    targets = [Path(os.path.normpath(path.parent / found[2])) for found in LINK.finditer(text)]
    return [each for each in targets if each.is_file() and DOCS not in each.parents]


def code_page(path: Path, text: str) -> str:
    language = {".py": "python", ".yml": "yaml", ".json": "json"}.get(path.suffix, "text")
    name = path.relative_to(ROOT).as_posix()
    return f"# {path.name}\n\n`{name}`\n\n~~~~{language}\n{text}\n~~~~\n"


def api_page(name: str, parts: tuple[str, ...]) -> str:
    first = f"::: {name}\n    options: {{heading_level: 1}}\n"
    return first + "".join(f"\n::: {name}.{part}\n" for part in parts)


def notebook_page(path: Path) -> str:
    """The cells of a notebook and what they printed."""
    where = path.relative_to(ROOT).as_posix()
    lines = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines.append(text)
            continue
        lines.append(f"~~~~python\n{text}\n~~~~")
        outputs = [printed(each) for each in cell["outputs"]]
        if any(outputs):
            lines.append(f"~~~~text\n{''.join(outputs).rstrip()}\n~~~~")
    lines.insert(1, f"This page is the notebook `{where}`.")
    return "\n\n".join(lines) + "\n"


def printed(output: dict[str, Any]) -> str:
    """What a cell has printed or returned, without colours."""
    text = "".join(output.get("text") or output.get("data", {}).get("text/plain") or [])
    return re.sub(r"\x1b\[[\d;]*m", "", text).replace("\r", "")
