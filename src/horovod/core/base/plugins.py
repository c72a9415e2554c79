"""Whether a framework's version takes the native plugin that was built for it.

Plugins use more than their frameworks promise, and may crash where that has changed. In versions
outside of our tests a test runs in a process of its own first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from horovod.core.base.own_files import home_folder

_TEST_TIMEOUT_S = 120


def works(
    library: Path,
    framework: str,
    version: str,
    tried: tuple[tuple[int, int], tuple[int, int]],
    script: str,
) -> bool:
    """Whether the plugin may be opened in this process.

    Args:
        library: the plugin.
        framework: name of the framework.
        version: the installed one, such as "2.21.0".
        tried: the oldest and the newest major and minor version that our tests run with; those, and
            what lies between, are trusted.
        script: a Python program that gets the library's path and exits with 0 if all is well.
    """
    major, minor = version.split(".")[:2]
    if tried[0] <= (int(major), int(minor)) <= tried[1]:
        return True
    try:
        proof = _proof(library, framework, version)
    except OSError:  # no plugin
        return False
    return proof.exists() or _passes_elsewhere(library, script, proof)


def _passes_elsewhere(library: Path, script: str, proof: Path) -> bool:
    """Run the test; success is remembered, failure is not: the machine may have been too busy."""
    command = [sys.executable, "-c", script, str(library)]
    try:
        test = subprocess.run(command, capture_output=True, timeout=_TEST_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    if test.returncode != 0:
        return False
    with contextlib.suppress(OSError):  # nowhere to remember
        proof.parent.mkdir(parents=True, exist_ok=True)
        proof.touch()
    return True


def _proof(library: Path, framework: str, version: str) -> Path:
    """A file that exists once this build has passed with this version."""
    build = hashlib.sha256(library.read_bytes()).hexdigest()[:16]
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or home_folder() / ".cache"
    except FileNotFoundError:
        cache = os.devnull  # nothing can be made below it, so nothing is remembered
    return Path(cache) / "horovod" / f"{framework}-{version}-{build}"
