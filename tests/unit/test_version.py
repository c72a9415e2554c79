"""The package's version, which the distribution has from its source."""

import subprocess
import sys
from importlib.metadata import version

import horovod


def test_it_is_that_of_the_distribution() -> None:
    assert horovod.__version__ == version("horovod")


def test_imports_need_no_engine() -> None:
    """So tests can be collected, and versions told, where nothing is compiled."""
    program = (
        "import sys, horovod, horovod.numpy, horovod.launch.cli.main, horovod.trace.report\n"
        "assert horovod.__version__ and 'horovod._native' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=500)
