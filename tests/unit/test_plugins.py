"""Which versions of a framework a plugin is used with, and what is remembered of a test."""

from pathlib import Path

import pytest

from horovod.core.base.plugins import works

TRIED = ((2, 15), (2, 21))
PASSES = "raise SystemExit(0)"
FAILS = "raise SystemExit(1)"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    library = tmp_path / "plugin.so"
    library.write_bytes(b"a build")
    return library


@pytest.mark.parametrize("version", ["2.15.1", "2.16.0rc1", "2.21"])
def test_tried_versions_are_trusted(library: Path, version: str) -> None:
    assert works(library, "f", version, TRIED, FAILS)


@pytest.mark.parametrize("version", ["1.15.0", "2.14.1", "2.22.0", "3.0"])
@pytest.mark.parametrize(("script", "passes"), [(PASSES, True), (FAILS, False)])
def test_others_are_tested(library: Path, version: str, script: str, passes: bool) -> None:
    assert works(library, "f", version, TRIED, script) is passes


def test_success_is_remembered_for_this_build(library: Path) -> None:
    assert works(library, "f", "9.0", TRIED, PASSES)
    assert works(library, "f", "9.0", TRIED, FAILS)
    assert not works(library, "g", "9.0", TRIED, FAILS)
    library.write_bytes(b"another build")
    assert not works(library, "f", "9.0", TRIED, FAILS)


def test_failure_is_not_remembered(library: Path) -> None:
    for script in (FAILS, "import os; os.abort()"):
        assert not works(library, "f", "9.0", TRIED, script)
    assert works(library, "f", "9.0", TRIED, PASSES)


def test_the_script_gets_the_library(library: Path) -> None:
    assert works(library, "f", "9.0", TRIED, "import sys; open(sys.argv[1]).close()")


def test_nowhere_to_remember(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(library))  # a file, not a folder
    assert works(library, "f", "9.0", TRIED, PASSES)


def test_without_a_plugin(tmp_path: Path) -> None:
    assert not works(tmp_path / "nothing.so", "f", "9.0", TRIED, PASSES)


def test_a_user_without_a_home(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", unknown)
    assert works(library, "f", "9.0", TRIED, PASSES)
    assert not works(library, "f", "9.0", TRIED, FAILS)
