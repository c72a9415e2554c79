"""Frameworks are imported here, because some warn about the libraries below them."""

import os
import warnings
from importlib import import_module
from importlib.util import find_spec

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in ("torch", "tensorflow", "keras", "mxnet"):
        if find_spec(name) is not None:
            import_module(f"horovod.{name}")
