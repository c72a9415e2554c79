import csv

from horovod.autotune.knobs import Surroundings, knobs_for, values_of
from horovod.autotune.log import Sample, SampleLog, describe, pinned
from horovod.autotune.search import Result
from horovod.launch.cli.config_file import read_config_file
from horovod.settings import Settings

MB = 1024 * 1024
DEFAULTS = values_of(Settings())
KNOBS = knobs_for(Settings(), (), Surroundings(is_native=True, spans_hosts=False))
FOUND = {**DEFAULTS, "fusion_threshold_bytes": 32 * MB, "cycle_time_ms": 0.2}


def test_the_documented_columns_come_first(tmp_path):
    path = tmp_path / "log.csv"
    log = SampleLog(str(path), has_cache=True, spans_hosts=False)
    log.write(Sample(FOUND, 12.5, 3.0, "search"))
    rows = list(csv.reader(path.read_text().splitlines()))
    assert rows[0][:7] == [
        *("hierarchical_allreduce", "hierarchical_allgather", "torus_allreduce"),
        *("cache_enabled", "cycle_time_ms", "tensor_fusion_threshold", "score"),
    ]
    assert rows[1][:7] == ["0", "0", "0", "1", "0.2", str(32 * MB), "12.5"]
    assert dict(zip(*rows, strict=True))["phase"] == "search"


def test_the_result_is_a_configuration_file(tmp_path):
    path = tmp_path / "found.yaml"
    path.write_text(pinned(Result(FOUND, 12.5, 1.1), KNOBS))
    tuned = {knob.name: FOUND[knob.name] for knob in KNOBS}
    assert read_config_file(path).settings == {**tuned, "autotune": False}


def test_the_result_in_one_line(tmp_path, caplog):
    text = describe(Result(FOUND, 12.5, 1.1), KNOBS, DEFAULTS)
    assert text == "1.10 times as fast with --fusion-threshold-mb 32 --cycle-time-ms 0.2"
    log = SampleLog(str(tmp_path / "log.csv"), has_cache=True, spans_hosts=False)
    log.finish(Result(FOUND, 12.5, 1.1), KNOBS, DEFAULTS)
    assert f"{text} (--config-file {tmp_path}/log.csv.yaml)" in caplog.text
    assert "nothing is clearly faster" in describe(Result(DEFAULTS, 12.5), KNOBS, DEFAULTS)


def test_a_format_that_is_found_is_an_option_and_a_key(tmp_path):
    settings = Settings(autotune_link_compression=("int8", "fp8"))
    knobs = knobs_for(settings, (), Surroundings(is_native=True, spans_hosts=True))
    found = Result({**DEFAULTS, "link_compression": "fp8"}, 12.5, 2.5)
    assert describe(found, knobs, DEFAULTS) == "2.50 times as fast with --link-compression fp8"
    path = tmp_path / "found.yaml"
    path.write_text(pinned(found, knobs))
    assert read_config_file(path).settings["link_compression"] == "fp8"
    log = SampleLog(str(tmp_path / "log.csv"), has_cache=True, spans_hosts=True)
    log.write(Sample(found.values, 12.5, 3.0, "search"))
    (row,) = csv.DictReader((tmp_path / "log.csv").read_text().splitlines())
    assert row["link_compression"] == "fp8"


def test_a_log_that_cannot_be_written_is_said_and_the_job_goes_on(tmp_path, caplog):
    log = SampleLog(str(tmp_path / "none" / "log.csv"), has_cache=True, spans_hosts=False)
    log.write(Sample(FOUND, 12.5, 3.0, "search"))
    assert caplog.text.count("cannot be written") == 1
