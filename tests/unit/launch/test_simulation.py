"""``horovodrun --simulate`` and ``--calibrate``: what they print, write and refuse."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from horovod.launch.cli import main as cli

MODEL = "--model resnet50 --samples-per-second 400"


def test_a_table_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--simulate 8,64 {MODEL} --ranks-per-host 8 --network 1gbit-tcp"
    assert cli.main(words.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith("resnet50, batch 64, 400 samples/s alone: 161 gradients, 102.2 MB")
    rows = [line.split() for line in out.splitlines() if line.strip().startswith(("8 ", "64 "))]
    assert [row[:2] for row in rows] == [["8", "1"], ["64", "8"]]
    assert "at 64 ranks, all together would be faster by" in out
    assert "compression=int8" in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(f"--simulate 2,4 {MODEL} --json".split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["ranks"] for each in found["predictions"]] == [2, 4]
    assert found["predictions"][0]["sent_bytes"] == found["gradient_bytes"]
    assert found["network"]["name"] == "25gbit-tcp"


def test_a_page_with_a_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.html"
    words = f"--simulate 1,8,64 {MODEL} --network 1gbit-tcp -o {path}".split()
    for _ in range(2):  # an earlier page is replaced
        assert cli.main(words) == 0
        assert f"horovodrun: wrote {path}" in capsys.readouterr().err
    text = path.read_text()
    assert text.count('class="step"') == 3
    assert "resnet50, batch 64" in text
    assert "compression=int8" in text
    path.write_text("notes")
    with pytest.raises(SystemExit):
        cli.main(words)
    assert "it is not overwritten" in capsys.readouterr().err
    assert path.read_text() == "notes"


def test_hosts_that_fail(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--simulate 8,80000 {MODEL} --ranks-per-host 8 --algorithm tree --mtbf 5000"
    assert cli.main(words.split()) == 0
    out = capsys.readouterr().out
    heads = next(line for line in out.splitlines() if "lasting" in line)
    assert heads.split()[-3:] == ["samples/s", "lasting", "commit"]
    assert "with hosts that fail half as often" in out
    assert "steps instead of every step" in out
    assert cli.main([*words.split(), "--json"]) == 0
    few, many = json.loads(capsys.readouterr().out)["predictions"]
    assert few["losses"]["useful"] > 0.99 > many["losses"]["useful"] > 0.8
    assert few["losses"]["commit_steps"] > many["losses"]["commit_steps"]
    assert many["lasting"] == many["efficiency"] * many["losses"]["useful"]


def test_hosts_and_their_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    tables = []
    for words in ("--hosts 8x4", "--ranks-per-host 4"):
        assert cli.main(f"--simulate 32 {MODEL} {words} --json".split()) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]


def test_costs_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "costs.json"
    network = {"name": "mine", "bandwidth": 1e6, "latency_s": 1e-3}
    path.write_text(json.dumps({"horovod_costs": 2, "costs": {}, "network": network}))
    assert cli.main(f"--simulate 2 {MODEL} --costs {path} --json".split()) == 0
    slow = json.loads(capsys.readouterr().out)
    assert slow["network"]["name"] == "mine"
    assert slow["predictions"][0]["step_s"] > 100


def test_names_of_others_are_fit_for_a_terminal_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs, page = tmp_path / "costs.json", tmp_path / "found.html"
    network = {"name": "\x1b[31m<b>\ud800", "bandwidth": 1e9, "latency_s": 1e-6}
    costs.write_text(json.dumps({"horovod_costs": 2, "costs": {}, "network": network}))
    assert cli.main(f"--simulate 2 {MODEL} --costs {costs} -o {page}".split()) == 0
    assert "between hosts: \\x1b[31m<b>\\ud800, 1 GB/s" in capsys.readouterr().out
    assert "&lt;b&gt;\\ud800" in page.read_text()


@pytest.mark.timeout(60)
def test_a_page_takes_the_place_of_no_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(SystemExit):
        cli.main(f"--simulate 2 {MODEL} -o {path}".split())
    assert f"{path}: expected a regular file" in capsys.readouterr().err


def test_a_step_that_never_ends_is_no_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = tmp_path / "dead.yaml"
    network.write_text("{bandwidth: 1.0e-305, latency_s: 1}")
    with pytest.raises(SystemExit):
        cli.main(f"--simulate 2 {MODEL} --network {network} --json".split())
    assert "a step on network dead never ends" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--simulate", "the following arguments are required: ranks"),
        (f"--simulate none {MODEL}", "numbers of ranks, such as 8,64,512, not 'none'"),
        (f"--simulate 0 {MODEL}", "numbers of ranks"),
        ("--simulate 2", "one of the arguments --from --model is required"),
        ("--simulate 2 --model resnet50", "--model needs --samples-per-second"),
        ("--simulate 2 --model resnet5 --samples-per-second 1", "no model 'resnet5'; there are"),
        ("--simulate 2 --model resnet50 --samples-per-second nan", "must be positive"),
        (f"--simulate 9 {MODEL} --ranks-per-host 4", "9 ranks do not fill hosts"),
        (f"--simulate 9 {MODEL} --hosts 2x4", "--hosts 2x4 are 8 ranks, not 9"),
        (f"--simulate 8 {MODEL} --hosts 2*4", "hosts and ranks on each, such as 64x8, not '2*4'"),
        (f"--simulate 2 {MODEL} --network isdn", "no network 'isdn' and no file of that name"),
        (f"--simulate 2 {MODEL} --costs none.json", "none.json: "),
        (f"--simulate 2 {MODEL} --batch 1{'0' * 400}", "must be positive, at most 2**50"),
        (f"--simulate 2 {MODEL} --jitter 2", "the jitter is a part of a step"),
        (f"--simulate 2 {MODEL} --mtbf nan", "mtbf_s must be in 0.001 to 1e+12: nan"),
        (f"--simulate 2 {MODEL} --commit-s 1", "need --mtbf: how often a host fails"),
        ("--simulate 2 --from no-such-job", "no recordings of job no-such-job"),
        ("--simulate 2 --from none/t.json", "no such file, and none/t.json: there is no such fold"),
        (f"--simulate 2 {MODEL} -o none/x.html", "none is no folder"),
        (f"--simulate 2 {MODEL} --netwrk x", "--netwrk: no such option; did you mean --network?"),
        (f"--simulate 2 {MODEL} --link-compression int8", "the advice says what formats would gai"),
        (f"--simulate 2 {MODEL} python x.py", "python: expected an option"),
        ("--calibrate -o none/x.json", "none is no folder"),
        ("-np 2 --simulate", "--simulate comes first"),
        ("-np 2 --calibrate", "--calibrate comes first"),
        ("--calibrate -H a:1", "--calibrate measures between two hosts, not 1: a:1"),
        ("--calibrate -H a,b", "invalid host input"),
    ],
)
def test_what_is_refused(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1


def test_a_file_of_others_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "theirs.json"
    theirs.write_text("{}")
    with pytest.raises(SystemExit):
        cli.main(["--calibrate", "-o", str(theirs)])
    assert "it is not overwritten" in capsys.readouterr().err
    assert theirs.read_text() == "{}"
