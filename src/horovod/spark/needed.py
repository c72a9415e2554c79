"""Import this before the first module of PySpark: it says what to install if that is missing."""

from __future__ import annotations

try:
    import pyspark  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "pyspark":
        raise
    raise ImportError(
        "horovod.spark needs PySpark, which is not installed here: pip install 'horovod[spark]'"
    ) from error
