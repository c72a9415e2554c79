"""Calls ``horovod.run`` with a function that never returns, and prints how the call ended."""

from __future__ import annotations

import signal
import sys
import threading

import psutil

import horovod


def stuck(is_stubborn: bool) -> None:
    if is_stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("stuck")
    threading.Event().wait()


def main() -> None:
    handler = signal.getsignal(signal.SIGINT)
    try:
        hosts = {"min_num_proc": 1, "hosts": "localhost:1,127.0.0.1:1"}
        options = hosts if sys.argv[1] == "elastic" else {}
        horovod.run(stuck, (sys.argv[1] == "stubborn",), num_proc=2, **options)
    except KeyboardInterrupt:
        is_same = signal.getsignal(signal.SIGINT) is handler
        children = psutil.Process().children(recursive=True)
        print(f"interrupted, handler {'restored' if is_same else 'lost'}, {len(children)} children")


if __name__ == "__main__":
    main()
