"""The parts of ``tests/elastic/support`` that ``elastic_recovery.py`` uses."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "elastic" / "support"))

from chaos_job import ChaosJob
from fault_plan import Limits
from rounds import problems_of
from watched_job import JobError, WatchedJob

__all__ = ["ChaosJob", "JobError", "Limits", "WatchedJob", "problems_of"]
