"""Rank 0 of one link, and ranks that try each address once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from one_link import Rank0

from horovod.rendezvous.links import dialing, listening


@pytest.fixture
def one_patient_try(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_TRIES", "_TRIES_WHEN_SILENT", "_TRIES_WHEN_EARLY"):
        monkeypatch.setattr(dialing, name, 1)
    monkeypatch.setattr(dialing, "_ANSWER_TIMEOUT_S", 60.0)
    monkeypatch.setattr(listening, "_HANDSHAKE_TIMEOUT_S", 60.0)


@pytest.fixture
def rank_0(nothing_leaks: None) -> Iterator[Rank0]:
    opened = Rank0()
    yield opened
    opened.close()
