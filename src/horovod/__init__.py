"""Distributed data-parallel training: import ``horovod.torch`` or ``horovod.numpy``."""

from importlib.metadata import version as _version

__all__ = ["__version__"]

__version__ = _version("horovod")
