"""One process that connects to the job's store again and again, as ranks do, and uses it.

store_visitor.py VISITS AT_ONCE: note ``visits`` at the end: for each visit None or the error.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import notes

from horovod.errors import InitError
from horovod.rendezvous.bootstrap import new_launcher_store

_CONNECT_S = 20.0
_ANSWER_S = 1.0


def visit(number: int) -> str | None:
    """Set a value and read it."""
    value = os.urandom(300)
    try:
        store = new_launcher_store(os.environ, _CONNECT_S)
        try:
            store.set(f"visit/{number}", value)
            found = store.get(f"visit/{number}", _ANSWER_S)
        finally:
            store.close()
    except (InitError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    return None if found == value else f"wrong: {found!r} instead of {value!r}"


def main() -> None:
    visits, at_once = map(int, sys.argv[1:])
    with ThreadPoolExecutor(at_once) as visitors:
        notes.leave("visits", list(visitors.map(visit, range(visits))))


if __name__ == "__main__":
    main()
