"""The page as text: whole, escaped, alone and not too large."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from made_reports import BEGIN_S, HOSTILE, job, made_page, process_record, records

from horovod.trace.report.facts import Advice
from horovod.trace.report.merge import merged
from horovod.trace.report.number_texts import bytes_text, seconds_text, share_text
from horovod.trace.report.page import page
from horovod.trace.report.process_record import record_from_bytes

VOID = {"meta", "input", "wbr"}


class Tags(HTMLParser):
    """Which elements there are; every one is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_names_of_tensors_are_texts() -> None:
    told = process_record(0, 1, name=HOSTILE)
    told.note(0, "failure", f"'{HOSTILE}' failed")
    text = page(merged(job(status=1, outcome=HOSTILE), [record_from_bytes(told.to_bytes())]))
    tags = Tags(text)
    assert "b" not in tags.seen
    assert tags.seen.count("script") == 2
    assert f"{HOSTILE}.0" in "".join(tags.texts)
    assert f"'{HOSTILE}' failed" in tags.texts
    data = re.search(r'id="data">(.*?)</script>', text)
    assert data
    assert HOSTILE in json.loads(data[1])["marks"][0][2]


@pytest.mark.parametrize("size", [1, 2, 256])
def test_a_page_is_one_file_of_bounded_size(size: int) -> None:
    text = made_page(size, seconds=150)
    assert len(text.encode()) < 2_000_000
    assert not re.search(r"""(src|href)=["'](?!#)""", text)
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg|http-equiv", "", text)
    for heading in ("Step time", "Waits", "Bandwidth", "Fusion", "Slowest tensors", "Events"):
        assert f">{heading}</h2>" in text
    assert "Autotune" not in text


def test_autotuning_has_a_section_where_there_was_any() -> None:
    text = made_page(1, trials=4)
    assert ">Autotune</h2>" in text
    assert '<th scope="row">3, chosen</th>' in text


def test_the_findings_of_the_doctor_come_first() -> None:
    found = [
        Advice("problem", "Rank 1 raised ValueError: <x>.", "Look at that line.", ["File <a>"]),
        Advice("note", "Rank 0 lost its peer."),
    ]
    text = page(merged(replace(job(status=1), findings=found), records(1)))
    assert text.index("Rank 1 raised ValueError: &lt;x&gt;.") < text.index('id="steps"')
    assert "<pre>File &lt;a&gt;</pre>" in text
    assert "Look at that line." in text
    assert "<details><summary>Notes</summary>" in text
    assert "Findings" not in page(merged(job(), records(1)))
    assert "nothing that would help" in page(merged(replace(job(), findings=[]), records(1)))


def test_sizes_that_no_collective_had_are_left_out() -> None:
    told = records(1)
    told[0]["by_bytes"] = [0] * 4 + [7] + [0] * 9 + [1] + [0] * 33
    tags = Tags(page(merged(job(), told)))
    assert {"16 B", "from 16 KiB"} <= set(tags.texts)
    assert "512 B" not in tags.texts


def test_what_the_program_has_logged() -> None:
    told = process_record(0, 1, seconds=3)
    told.count(BEGIN_S + 5, BEGIN_S + 6, {"samples": 256})
    told.log(BEGIN_S + 6, {"loss": 2.0}, 100)
    told.log(BEGIN_S + 6, {"loss": 3.0, HOSTILE: 1.0}, None)
    told.log(BEGIN_S + 6, {"loss": float("nan")}, 102)
    text = page(merged(job(), [record_from_bytes(told.to_bytes())]))
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])  # type: ignore[index]
    assert data["logged"] == ["loss", HOSTILE]
    assert {value for value in data["rows"][0]["logged"][0] if value is not None} == {2.5}
    tags = Tags(text)
    assert {"Samples per second", "256", "loss is nan at step 102"} <= set(tags.texts)
    assert ">Training</h2>" in text
    assert ">Training</h2>" not in made_page(1)


def test_a_job_without_numbers_has_a_page() -> None:
    text = page(merged(job(status=1, outcome="horovodrun: no host"), []))
    Tags(text)
    assert "none got as far as init" in text
    assert "failed, exit status 1" in text


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "finished"), (1, "failed, exit status 1"), (130, "ended by SIGINT"), (255, "status 255")],
)
def test_how_it_ended(status: int, words: str) -> None:
    assert words in page(merged(job(status=status), []))


def test_numbers_for_people() -> None:
    times = [0, 3.4e-4, 0.0123, 4.5, 125, 12000]
    assert [seconds_text(t) for t in times] == [
        *("0", "340 µs", "12.3 ms", "4.5 s", "2 min 5 s", "3 h 20 min")
    ]
    assert [bytes_text(size) for size in (0, 812, 4.2e6, 9.999e8)] == [
        "0 B",
        "812 B",
        "4.2 MB",
        "1 GB",
    ]
    assert [share_text(share) for share in (0, 0.012, 0.5, None)] == [
        "0 %",
        "1.2 %",
        "50 %",
        "\N{EN DASH}",
    ]
