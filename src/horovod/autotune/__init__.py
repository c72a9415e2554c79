"""Looks for the fastest settings while a program trains; see docs/autotune.md.

``knobs`` lists what may change. ``search`` decides what is tried next and what wins, ``log``
records, and ``tuner`` measures and runs the search in a thread of rank 0. Every rank's engine
follows: each collective carries the values it runs with.
"""

from horovod.autotune.tuner import Autotuning

__all__ = ["Autotuning"]
