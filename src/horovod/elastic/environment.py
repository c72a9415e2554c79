"""Whether this process is a worker of a job whose size may change."""

from __future__ import annotations

import os

__all__ = ["is_elastic_job"]


def is_elastic_job() -> bool:
    """Whether an elastic launcher started this process: what is made now may see other worlds.

    So a world of one may become a larger one, and a process that comes later must not need the
    others for what it makes before it trains.
    """
    return os.environ.get("HOROVOD_ELASTIC") == "1"
