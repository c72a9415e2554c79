"""The classes of the Lightning in use: ``lightning`` or ``pytorch_lightning``.

Both packages have the same code, but a ``Trainer`` accepts only classes of its own package. The one
that the program has imported is used; ``lightning`` if it has imported both or none of them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

# Before 2.2 Lightning never calls the strategy's `model_to_device`, which broadcasts the weights.
# Lightning 2.0 ignores `sync_dist`, too.
_OLDEST = (2, 2)
_ROOTS = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def _package() -> str:
    imported = [name for name in _ROOTS if name in sys.modules]
    installed = [name for name in _ROOTS if find_spec(name) is not None]
    for name in (*imported, *installed):
        return name
    raise ImportError(
        "horovod.lightning needs Lightning, which is not installed here: pip install lightning"
    )


_name = _package()
_root = _ROOTS[_name]
_version = str(import_module(_name).__version__)
if tuple(int(number) for number in _version.split(".")[:2]) < _OLDEST:
    _oldest = ".".join(map(str, _OLDEST))
    raise ImportError(f"horovod.lightning needs {_name} {_oldest} or newer, not {_version}")

Callback = import_module(f"{_root}.callbacks").Callback
LightningEnvironment = import_module(f"{_root}.plugins.environments").LightningEnvironment
ParallelStrategy = import_module(f"{_root}.strategies").ParallelStrategy
rank_zero_only = import_module(f"{_root}.utilities").rank_zero_only
