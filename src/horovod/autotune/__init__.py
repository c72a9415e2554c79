"""Looks for the fastest settings while a program trains; see docs/autotune.md.

``knobs`` says what may change, ``search`` what is tried next and what wins, with ``explorer`` and
``gaussian`` behind it; ``steps`` measures, ``log`` shows, ``tuner`` runs it all in a thread of rank
0. Every rank's engine follows by itself: a collective carries the values it is run with.
"""

from horovod.autotune.setup import Autotuning, check_autotune

__all__ = ["Autotuning", "check_autotune"]
