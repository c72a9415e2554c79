"""The package's version, which the distribution has from its source."""

import subprocess
import sys
from importlib.metadata import version

import horovod


def test_it_is_that_of_the_distribution() -> None:
    assert horovod.__version__ == version("horovod")


def test_it_needs_no_engine() -> None:
    program = "import horovod, sys; horovod.__version__; assert 'horovod._native' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
