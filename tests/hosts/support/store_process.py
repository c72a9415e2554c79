"""The store of a job, as its launcher keeps it: python store_process.py ADDRESS < SECRET

Reads the job's secret in base64 from the first line of standard input, prints its port, and serves
until the end of standard input.
"""

from __future__ import annotations

import base64
import sys

from horovod.rendezvous.store.server import StoreServer


def main() -> None:
    secret = base64.b64decode(sys.stdin.readline())
    with StoreServer(secret, addresses=[(sys.argv[1], 0)]) as store:
        print(store.address[1], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
