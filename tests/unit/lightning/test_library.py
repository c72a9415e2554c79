"""``horovod.lightning`` without Lightning; tests/engines/lightning has the rest."""

from __future__ import annotations

import importlib.util
import sys

import pytest


def test_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if "lightning" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"horovod\.lightning needs.*pip install lightning"):
        import horovod.lightning  # noqa: F401
