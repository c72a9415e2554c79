"""A rank that is lost, leaves or does not submit: the errors of MXNet's arrays."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec

import pytest
from ending_jobs import ENDINGS, LIMIT_S, report_of
from launching import run

pytestmark = [
    pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed"),
]


@pytest.mark.parametrize(("how", "text"), ENDINGS)
def test_an_array_that_waits_for_a_rank_names_it(how, text):
    found = report_of("mxnet_ending.py", how, r"usable True after ([\d.]+) s, 2 errors: (.*)")
    assert float(found[1]) < LIMIT_S
    assert "HorovodInternalError" in found[2]
    assert re.search(text, found[2])


def test_a_result_that_is_not_used_makes_no_noise_at_the_end():
    script = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import mxnet as mx, horovod.mxnet as hvd\n"
        "hvd.init()\n"
        "hvd.allreduce(mx.nd.ones(3)).wait_to_read()\n"
        "if hvd.rank() == 0: kept = hvd.allgather(mx.nd.ones(3))\n"
    )
    status, out, err = run("-np", "2", sys.executable, "-c", script)
    assert status == 0
    assert "MXNetError" not in out + err
