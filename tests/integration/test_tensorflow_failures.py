"""A rank that is lost, leaves, does not submit or is interrupted: the errors of TensorFlow."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest
from ending_jobs import ENDINGS, KILLED, LIMIT_S, report_of

pytestmark = [
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]


def ending(how: str, native: str) -> re.Match[str]:
    """The report of rank 0: the class of the error, the seconds until it came, its text."""
    settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "HOROVOD_TENSORFLOW_NATIVE_OPS": native}
    found = report_of("tensorflow_ending.py", how, r"(\w+) after ([\d.]+) s: (.*)", **settings)
    assert float(found[2]) < LIMIT_S
    return found


@pytest.mark.parametrize(
    ("native", "how", "text"), [("0", *KILLED), *(("1", *ending) for ending in ENDINGS)]
)
def test_a_function_that_waits_for_a_rank_names_it(native, how, text):
    found = ending(how, native)
    assert found[1] == "UnknownError"
    assert re.search(text, found[3])


@pytest.mark.parametrize("native", ["1", "0"])
def test_ctrl_c_ends_an_eager_collective(native):
    assert ending("interrupt", native)[1] == "KeyboardInterrupt"
