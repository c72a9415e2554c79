"""The requirements of the tests with Spark and Ray."""

from __future__ import annotations

import os
import shutil

import pytest


@pytest.fixture(scope="session")
def java() -> None:
    """Whether there is a Java for Spark."""
    home = os.environ.get("JAVA_HOME")
    if not shutil.which(f"{home}/bin/java" if home else "java"):
        pytest.skip("Spark needs Java 17 or later: apt-get install openjdk-17-jre-headless")
