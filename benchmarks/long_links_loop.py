"""The measured loop of ``long_links.py``; runs in the workers."""

from __future__ import annotations

import os

from collective_loop import CollectiveLoop

from horovod.rendezvous.base import tcp

__all__ = ["CONGESTION", "CollectiveLoop"]

CONGESTION = "BENCH_CONGESTION"  # an environment variable: what long links use

tcp._FOR_LONG_LINKS = os.environ.get(CONGESTION, "bbr").encode()
