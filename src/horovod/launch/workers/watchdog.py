"""Ends the workers when the launcher itself is killed with SIGKILL and cannot do it any more.

A shell in a session of its own holds the list of the workers' process groups and sleeps in ``read``
until the launcher's end of a pipe closes, for whatever reason. It is a shell, not a fork of Python,
because it starts in a millisecond and because ``pkill -9 -f horovodrun`` must not match it.
"""

from __future__ import annotations

import contextlib
import os
import signal

__all__ = ["Watchdog"]

_SCRIPT = """
trap '' HUP INT TERM
groups=
while read -r verb group; do
  case $verb in
    add) groups="$groups $group" ;;
    drop)
      kept=
      for each in $groups; do [ "$each" = "$group" ] || kept="$kept $each"; done
      groups=$kept ;;
  esac
done
for each in $groups; do kill -s TERM -- "-$each"; kill -s CONT -- "-$each"; done
for second in 1 2 3 4 5; do
  left=
  for each in $groups; do kill -s 0 -- "-$each" && left=1; done
  [ -n "$left" ] || exit 0
  sleep 1
done
for each in $groups; do kill -s KILL -- "-$each"; done
"""


class Watchdog:
    """Knows the process groups that must not outlive the launcher; ``pid`` is 0 without a shell."""

    def __init__(self) -> None:
        self.pid = 0
        reader, self._writer = os.pipe()
        actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_DUP2, reader, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        environment = {"PATH": os.defpath}
        words = ["/bin/sh", "-c", _SCRIPT]
        with contextlib.suppress(OSError):
            self.pid = os.posix_spawn(
                words[0], words, environment, file_actions=actions, setsid=True
            )
        os.close(reader)

    def add(self, group: int) -> None:
        """From now on end ``group`` with the launcher."""
        self._tell(f"add {group}\n")

    def drop(self, group: int) -> None:
        """``group`` has ended; its number may come to belong to someone else."""
        self._tell(f"drop {group}\n")

    def close(self) -> None:
        """Dismiss the watchdog; blocks until it has gone."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.pid = 0
        os.close(self._writer)

    def was_reaped(self) -> None:
        """The watchdog ended before it was dismissed."""
        self.pid = 0

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writer, line.encode())
