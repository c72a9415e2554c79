"""An error of the engine goes to a plugin that has a libstdc++ of its own, as in wheels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "engine"
SOURCE = """
#include <optional>

#include "core/error.h"

using MaybeError = std::optional<hvd::Error>;

extern "C" MaybeError* make() {
  return new MaybeError(hvd::Error(hvd::ErrorCode::kMismatch, "shapes must match on all ranks"));
}
extern "C" void take(MaybeError& error) { const MaybeError mine = std::move(error); }
extern "C" void copy(const MaybeError& error) { const MaybeError mine = error; }
extern "C" void drop(MaybeError* error) { delete error; }
"""
PROGRAM = """
import ctypes, sys

ours, theirs = (ctypes.CDLL(path) for path in sys.argv[1:])
ours.make.restype = ctypes.c_void_p
for use in theirs.copy, theirs.take:
    error = ctypes.c_void_p(ours.make())
    use(error)
    ours.drop(error)
"""


COMPILER = os.environ.get("CXX", "c++")


def _has_static_library() -> bool:
    question = [COMPILER, "-print-file-name=libstdc++.a"]
    found = subprocess.run(question, capture_output=True, text=True, check=True, timeout=500)
    return "/" in found.stdout


@pytest.mark.skipif("not _has_static_library()", reason="there is no libstdc++.a")
def test_a_library_drops_what_another_one_has_copied_or_taken(tmp_path: Path) -> None:
    source = tmp_path / "library.cc"
    source.write_text(SOURCE)
    libraries = [tmp_path / name for name in ("ours.so", "theirs.so")]
    compiler = [COMPILER, "-std=c++20", "-O1", "-shared", "-fPIC"]
    alone = ["-static-libstdc++", "-Wl,--exclude-libs,ALL", "-Wl,-Bsymbolic"]
    for library in libraries:
        words = ["-I", str(ENGINE), str(source), "-o", str(library)]
        subprocess.run([*compiler, *alone, *words], check=True, timeout=500)
    subprocess.run([sys.executable, "-c", PROGRAM, *map(str, libraries)], check=True, timeout=500)
