"""``horovod.lightning`` without Lightning; tests/engines/lightning has the rest."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest


def test_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if "lightning" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"horovod\.lightning needs.*pip install lightning"):
        import horovod.lightning  # noqa: F401


@pytest.mark.parametrize("version", ["1.9.5", "2.0.9", "2.1.4"])
def test_a_version_that_would_not_broadcast_the_weights_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    for name in [name for name in sys.modules if "lightning" in name]:
        monkeypatch.delitem(sys.modules, name)
    old = ModuleType("lightning")
    old.__version__ = version
    monkeypatch.setitem(sys.modules, "lightning", old)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=rf"lightning 2\.2 or newer, not {version}"):
        import horovod.lightning  # noqa: F401
