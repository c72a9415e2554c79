"""What Prometheus gets, who gets it, and which settings are refused."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from horovod.errors import InitError, SettingError
from horovod.metrics import endpoint as endpoint_module
from horovod.metrics import setup
from horovod.metrics.counters import CounterTotals
from horovod.metrics.endpoint import Endpoint, JobCollector
from horovod.metrics.setup import Reporter, check_export, reported, token_of
from horovod.settings import Settings

NUMBERS = {
    0: {**CounterTotals().read(None), "allreduce_bytes": 12, "waited_seconds": 0.5},
    1: {**CounterTotals().read(None), "in_flight_operations": 2},
}


@pytest.fixture(params=["", "s3cret"])
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    served = Endpoint("127.0.0.1", 0, request.param, JobCollector(lambda: NUMBERS, 2))
    yield served
    served.close()


def ask(endpoint: Endpoint, path: str = "/metrics", token: str = "s3cret") -> tuple[int, str]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{endpoint.port}{path}", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_all_ranks_by_label(endpoint: Endpoint) -> None:
    status, text = ask(endpoint)
    assert status == 200
    lines = text.splitlines()
    assert "horovod_size 2.0" in lines
    assert 'horovod_bytes_total{kind="allreduce",rank="0"} 12.0' in lines
    assert 'horovod_bytes_total{kind="allreduce",rank="1"} 0.0' in lines
    assert 'horovod_waited_seconds_total{rank="0"} 0.5' in lines
    assert 'horovod_in_flight_operations{rank="1"} 2.0' in lines
    assert ask(endpoint, "/other")[0] == 404


@pytest.mark.parametrize("endpoint", ["s3cret"], indirect=True)
@pytest.mark.parametrize("token", ["", "other", "s3cret "])
def test_who_has_no_token_gets_nothing(endpoint: Endpoint, token: str) -> None:
    status, text = ask(endpoint, token=token + "x" if token == "s3cret " else token)
    assert status == 401
    assert "horovod_size" not in text


@pytest.mark.parametrize("endpoint", [""], indirect=True)
def test_silent_strangers_do_not_keep_others_from_asking(endpoint: Endpoint) -> None:
    silent = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(4)]
    assert ask(endpoint)[0] == 200
    for stranger in silent:
        stranger.close()


@pytest.mark.parametrize("endpoint", [""], indirect=True)
def test_who_spreads_its_bytes_is_given_up_all_the_same(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "_REQUEST_S", 0.3)
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", endpoint.port)) as slow:
        slow.settimeout(0.02)
        with contextlib.suppress(ConnectionError):
            for byte in itertools.cycle(b"GET /metrics "):
                slow.sendall(bytes((byte,)))
                with contextlib.suppress(TimeoutError):
                    if not slow.recv(1):
                        break
                assert time.monotonic() < began + 30


@pytest.mark.parametrize("endpoint", [""], indirect=True)
def test_many_slow_strangers_do_not_keep_others_from_asking(endpoint: Endpoint) -> None:
    """More than there are threads, each of which has asked for a part of an answer."""
    slow = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(100)]
    for each in slow:
        with contextlib.suppress(ConnectionError):  # it had to go already
            each.sendall(b"G")
    for _ in range(3):
        assert ask(endpoint)[0] == 200
    for each in slow:
        each.close()


def test_a_port_that_is_taken_is_named(endpoint: Endpoint) -> None:
    with pytest.raises(InitError, match=f"cannot listen at 127.0.0.1, port {endpoint.port}"):
        Endpoint("127.0.0.1", endpoint.port, "", JobCollector(dict, 1))


def test_every_number_has_a_family() -> None:
    names = {sample.name for family in JobCollector(lambda: NUMBERS, 2).collect()
             for sample in family.samples}  # fmt: skip
    for name in NUMBERS[0]:
        kind, _, what = name.rpartition("_")
        assert {f"horovod_{name}", f"horovod_{name}_total", f"horovod_{what}_total"} & names, kind


class Memory:
    """A store of one process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str, timeout_s: float) -> bytes:
        if key not in self.values:
            raise TimeoutError(key)
        return self.values[key]

    def close(self) -> None:
        pass


def test_ranks_report_through_the_store_and_at_the_end() -> None:
    store, count = Memory(), iter(range(1000))
    reporter = Reporter(store, "scope/", 2, lambda: {"steps": next(count)})
    reporter.close()
    found = reported(store, "scope/", range(1, 4))
    assert list(found) == [2]
    assert found[2]["steps"] >= 0
    assert found[2]["report_time_seconds"] > 1e9
    assert reported(store, "other/", range(1, 4)) == {}


def test_without_prometheus_client_the_port_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "find_spec", lambda name: None)
    check_export(Settings())
    with pytest.raises(SettingError, match=r"pip install 'horovod\[metrics\]'"):
        check_export(Settings(metrics_port=9000))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_no_token(address: str) -> None:
    assert token_of(Settings(metrics_address=address), {}) == ""
    assert token_of(Settings(metrics_address=address), {"HOROVOD_METRICS_TOKEN": "t"}) == "t"


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.5", "node-1"])
def test_other_addresses_need_one(address: str) -> None:
    with pytest.raises(SettingError, match="so a token is needed"):
        token_of(Settings(metrics_address=address), {})
    assert token_of(Settings(metrics_address=address), {"HOROVOD_METRICS_TOKEN": "t"}) == "t"


def test_a_token_in_a_file_that_nobody_else_reads(tmp_path: Path) -> None:
    file = tmp_path / "token"
    settings = Settings(metrics_address="0.0.0.0", metrics_token_file=str(file))
    with pytest.raises(SettingError, match="No such file"):
        token_of(settings, {})
    file.write_text("abc\n")
    file.chmod(0o640)
    with pytest.raises(SettingError, match="others can read it"):
        token_of(settings, {})
    file.chmod(0o600)
    assert token_of(settings, {"HOROVOD_METRICS_TOKEN": "t"}) == "abc"
    file.write_text("\n")
    with pytest.raises(SettingError, match="empty"):
        token_of(settings, {})
