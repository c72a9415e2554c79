"""A rank that is lost, leaves or does not submit: the errors of compiled JAX programs."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest
from ending_jobs import ENDINGS, KILLED, LIMIT_S, report_of

pytestmark = [
    pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed"),
]


@pytest.mark.parametrize(
    ("native", "how", "text"), [("0", *KILLED), *(("1", *ending) for ending in ENDINGS)]
)
def test_a_program_that_waits_for_a_rank_names_it(native, how, text):
    pattern = r"usable True after ([\d.]+) s: (.*)"
    found = report_of("jax_ending.py", how, pattern, HOROVOD_JAX_NATIVE_OPS=native)
    assert float(found[1]) < LIMIT_S
    assert "HorovodInternalError" in found[2]
    assert re.search(text, found[2])
