"""Experiment files (``riseml.yml``): reads them, plans them as jobs, and runs the jobs.

``document`` and ``schema`` read a file and ``plan`` makes jobs of it; all three are pure.
``runner`` runs the plan; each line is one job with a launcher process of its own.
"""

from pathlib import Path

SCHEMA = Path(__file__).with_name("riseml.schema.json")
