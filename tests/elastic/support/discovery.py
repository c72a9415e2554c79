"""A discovery script; the test changes its answer while the job runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["ANSWERS", "Discovery"]

ANSWERS = {
    "good": 'cat "{folder}/hosts"',
    "garbage": 'printf "host one: two\\n\\001\\377:::\\n<html>\\n"',
    "failing": 'echo "discovery: no answer" >&2; exit 3',
    # Until the test lets it answer again, or removes its folder.
    "slow": 'while [ -e "{folder}/is_slow" ]; do sleep 0.05; done; cat "{folder}/hosts"',
}
"""What the script does, by name."""


class Discovery:
    """``script`` is the program's path; ``hosts`` are the names with their slots."""

    def __init__(self, folder: Path, hosts: Mapping[str, int]) -> None:
        self.script = folder / "discovery.sh"
        self._folder = folder
        self.set_hosts(hosts)
        self.answer("good")

    def set_hosts(self, hosts: Mapping[str, int]) -> None:
        """Set the good answer."""
        self.hosts = dict(hosts)
        lines = "".join(f"{name}:{slots}\n" for name, slots in self.hosts.items())
        _replace(self._folder / "hosts", lines)

    def answer(self, how: str) -> None:
        """Set one of ``ANSWERS``."""
        if how == "slow":
            (self._folder / "is_slow").touch()
        text = ANSWERS[how].replace("{folder}", str(self._folder))
        _replace(self.script, f"#!/bin/sh\n{text}\n", mode=0o755)
        if how != "slow":
            (self._folder / "is_slow").unlink(missing_ok=True)


def _replace(path: Path, text: str, mode: int = 0o644) -> None:
    """Write it at once: a reader gets the old text or the new one."""
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(text)
    unfinished.chmod(mode)
    unfinished.rename(path)
