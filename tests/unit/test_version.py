"""The version that is compiled into the engine."""

from importlib.metadata import version

import horovod


def test_it_is_that_of_the_distribution() -> None:
    assert horovod.__version__ == version("horovod")
