"""``--keep-memory``: what a program frees serves its next allocations."""

from __future__ import annotations

import platform
import sys

import pytest
from launching import run

pytestmark = [
    pytest.mark.usefixtures("no_child_is_left"),
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of glibc"),
]

# Prints the pages that the kernel hands out for arrays of 64 MB after the first one.
SCRIPT = """
from resource import RUSAGE_SELF, getrusage
import horovod.numpy as hvd
hvd.init()
def pages():
    return getrusage(RUSAGE_SELF).ru_minflt
b"x" * (64 << 20)
before = pages()
for _ in range(5):
    b"x" * (64 << 20)
print("pages", pages() - before)
"""


def pages(*options: str) -> int:
    status, out, err = run("-np", "1", *options, sys.executable, "-c", SCRIPT)
    assert status == 0, err
    return int(out.split("pages")[1])


def test_memory_that_a_program_frees_is_not_handed_out_anew() -> None:
    assert 4 * pages("--keep-memory") < pages()
