"""Config files, who may talk to the registry, and waits that end."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

from horovod.runner.common.util.timeout import TimeoutException  # noqa: E402
from horovod.tensorflow.data import compute_service, compute_worker, registry  # noqa: E402
from horovod.tensorflow.data.compute_service import (  # noqa: E402
    TfDataServiceConfig,
    compute_worker_fn,
    send_to_data_service,
    tf_data_service,
)

KEY = b"k" * 32
CONFIG = TfDataServiceConfig(2, 3, "compute", {"lo": [("127.0.0.1", 1)]}, KEY, 5)


@pytest.fixture
def config() -> Iterator[TfDataServiceConfig]:
    """Of a registry that runs, with nobody registered."""
    with registry.serve(KEY) as addresses:
        yield TfDataServiceConfig(1, 1, "compute", addresses, KEY, timeout=0.05)


def test_a_config_survives_a_dict_and_a_file(tmp_path: Path) -> None:
    assert TfDataServiceConfig.from_dict(CONFIG.to_dict()) == CONFIG
    CONFIG.write(tmp_path / "config.json")
    assert TfDataServiceConfig.read(tmp_path / "config.json") == CONFIG
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_only_the_user_can_read_the_key(tmp_path: Path) -> None:
    CONFIG.write(tmp_path / "config.json")
    assert stat.S_IMODE((tmp_path / "config.json").stat().st_mode) == 0o600
    assert "kkkk" not in repr(CONFIG)


def test_a_config_replaces_the_one_before(tmp_path: Path) -> None:
    CONFIG.write(tmp_path / "config.json")
    later = replace(CONFIG, dispatchers=1)
    later.write(str(tmp_path / "config.json"))
    assert TfDataServiceConfig.read(str(tmp_path / "config.json")) == later


def test_a_config_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(OSError, match=r"config\.json"):
        CONFIG.write(tmp_path / "config.json")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("kind", ["queue", "theirs"])
def test_a_config_that_is_not_this_users_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "queue":
        os.mkfifo(path)
    else:
        if os.geteuid() != 0:
            pytest.skip("needs root, to be somebody else")
        CONFIG.write(path)
        os.chown(path, 65534, 65534)
    with pytest.raises(PermissionError, match=f"{path}.*expected"):
        TfDataServiceConfig.read(path, wait_for_file_creation=True)


def test_read_fails_or_waits_for_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(FileNotFoundError):
        TfDataServiceConfig.read(path)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            CONFIG.write(path)

    monkeypatch.setattr(compute_service.time, "sleep", sleep)
    assert TfDataServiceConfig.read(path, wait_for_file_creation=True) == CONFIG
    assert waits == [1, 1, 1]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dispatcher_side": "both"}, "dispatcher_side 'both'"),
        ({"dispatchers": 0}, "dispatchers 0"),
        ({"workers_per_dispatcher": 0}, "workers_per_dispatcher 0"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(changes: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        replace(CONFIG, **changes)  # type: ignore[arg-type]


def test_workers_belong_to_dispatchers_in_order() -> None:
    assert [list(CONFIG.workers_of(dispatcher)) for dispatcher in (0, 1)] == [[0, 1, 2], [3, 4, 5]]


def test_the_registry_listens_on_loopback_only(config: TfDataServiceConfig) -> None:
    assert [host for host, _ in config.addresses["lo"]] == ["127.0.0.1"]


def test_another_key_is_refused(
    config: TfDataServiceConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConnectionError, match=r"compute service: .* refused this process"):
        replace(config, key=b"x" * 32).compute_client()
    said, deadline = "", time.monotonic() + 30  # by the server's thread, maybe after we were told
    while "does not know the job's secret" not in said:
        assert time.monotonic() < deadline
        said += capfd.readouterr().err
    with pytest.raises(ValueError, match="the key is empty"):
        replace(config, key=b"").compute_client()


def test_an_ended_compute_job_is_said_to_have_ended() -> None:
    with registry.serve(KEY) as addresses:
        client = registry.ComputeClient(addresses, KEY)
    with pytest.raises(ConnectionError, match="the compute job has ended"):
        client.wait_for_dispatcher(0, 5)
    with pytest.raises(ConnectionError, match="is the config file of this compute job"):
        registry.ComputeClient(addresses, KEY)


@pytest.mark.parametrize(
    ("dispatcher_side", "rank", "missing"),
    [("compute", 0, "dispatcher"), ("training", 1, "dispatcher"), ("training", 0, "worker")],
)
def test_who_does_not_come_is_named_in_time(
    config: TfDataServiceConfig, dispatcher_side: str, rank: int, missing: str
) -> None:
    config = replace(config, dispatcher_side=dispatcher_side)
    with (
        pytest.raises(TimeoutException, match=rf"no {missing} 0 within 0.05 s"),
        tf_data_service(config, rank),
    ):
        pass


def test_there_is_one_dispatcher_or_one_per_rank(config: TfDataServiceConfig) -> None:
    with (
        pytest.raises(ValueError, match="none for training rank 2"),
        tf_data_service(replace(config, dispatchers=2), 2),
    ):
        pass


def test_a_dispatcher_registers_once(config: TfDataServiceConfig) -> None:
    with config.compute_client() as client:
        client.register_dispatcher(0, "grpc://localhost:1")
        with pytest.raises(RuntimeError, match="dispatcher 0 is registered already"):
            client.register_dispatcher(0, "grpc://localhost:2")
        assert client.wait_for_dispatcher(0, 5) == "grpc://localhost:1"


def test_leaving_is_waited_for_in_vain_only_so_long(config: TfDataServiceConfig) -> None:
    with config.compute_client() as client:
        assert not client.wait_for_leaving(["rank 1"], 0.05)
        client.leave("rank 1")
        assert client.wait_for_leaving(["rank 1"], 5)


def test_send_refuses_what_cannot_work(config: TfDataServiceConfig) -> None:
    numbers = tf.data.Dataset.range(3)
    with pytest.raises(RuntimeError, match="use tf_data_service"):
        send_to_data_service(numbers, replace(config, dispatcher_side="training"), 0)
    with pytest.raises(ValueError, match="needs reuse_dataset"):
        numbers.send_to_data_service(config, 0, 1, round_robin=True)
    with pytest.raises(ValueError, match="number of ranks in size"):
        numbers.send_to_data_service(config, 0, reuse_dataset=True, round_robin=True)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("dispatchers", "side", "reason"),
    [(2, "compute", "must be a multiple"), (1, "training", "no dispatcher 0 within 0.1 s")],
)
def test_a_compute_job_that_cannot_serve_fails(
    tmp_path: Path, dispatchers: int, side: str, reason: str
) -> None:
    with pytest.raises((ValueError, TimeoutException), match=reason):
        compute_worker.main(dispatchers, side, 0.1, tmp_path / "config.json")
    assert list(tmp_path.iterdir()) == []


def test_a_rank_too_many_is_no_compute_worker(
    config: TfDataServiceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    with pytest.raises(ValueError, match="compute worker 1: 1 dispatcher"):
        compute_worker_fn(config)


def test_a_compute_worker_serves_until_shutdown(config: TfDataServiceConfig) -> None:
    config = replace(config, timeout=500)
    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(compute_worker_fn, config)
        with config.compute_client() as client:
            try:
                numbers = tf.data.Dataset.range(10).map(lambda number: 3 * number)
                for _ in range(2):  # a second reading is one of its own
                    sent = numbers.send_to_data_service(config, 0, 1, reuse_dataset=True)
                    assert sorted(int(n) for n in sent) == list(range(0, 30, 3))
                assert not worker.done()
            finally:
                client.shutdown()
        worker.result(timeout=500)


def test_the_client_says_what_it_does_when_asked(
    config: TfDataServiceConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    with config.compute_client(verbose=2) as client:
        client.register_worker(4)
    with config.compute_client() as client:
        client.register_worker(5)
    assert capsys.readouterr().out == "compute service: worker/4\n"


def test_shutdown_wakes_whoever_waits(config: TfDataServiceConfig) -> None:
    def wait() -> None:
        with config.compute_client() as client:
            client.wait_for_shutdown()

    waiting = threading.Thread(target=wait)
    waiting.start()
    with config.compute_client() as client:
        client.shutdown()
    waiting.join(60)
    assert not waiting.is_alive()


def test_only_a_config_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "config"
    compute_worker.remove_config(path)  # there is none
    TfDataServiceConfig(1, 1, "compute", {"eth0": [("10.0.0.1", 7)]}, b"key").write(path)
    compute_worker.remove_config(path)
    assert not path.exists()
    for text in ("words", "{}", "[1]", "3"):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"{path} holds no config of a compute job"):
            compute_worker.remove_config(path)
    path.unlink()
    path.symlink_to("thesis")
    with pytest.raises(OSError, match="config"):
        compute_worker.remove_config(path)
    assert path.is_symlink()
