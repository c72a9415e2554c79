"""What a discovery's output means, and what is said while there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.launch.elastic.host_sources import Discovery, Finding, Trouble, parse_found_hosts


def test_lines() -> None:
    assert parse_found_hosts("b:2\na.x-1:3\n", None) == {"b": 2, "a.x-1": 3}
    assert list(parse_found_hosts("b:2\na:3", None)) == ["b", "a"]


def test_no_hosts_at_all() -> None:
    assert parse_found_hosts("", None) == {}
    assert parse_found_hosts("\n \n", None) == {}


def test_lines_that_come_twice_count_once() -> None:
    assert parse_found_hosts("a:2\nb\r\na:2\nb\n", 4) == {"a": 2, "b": 4}


def test_a_host_without_slots_is_not_there() -> None:
    assert parse_found_hosts("a:0\nb:1", None) == {"b": 1}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a:2\nno hosts!", r"line 2, 'no hosts!': expected host or host:slots"),
        ("a:-1", r"line 1, 'a:-1': expected"),
        ("a:two", r"line 1, 'a:two': expected"),
        ("a:1234567", r"line 1, .*: expected"),
        ("a", r"line 1, 'a': no number of slots; print a:N, or give --slots-per-host"),
        ("a:2\n\na:3", r"line 3, 'a:3': an earlier line says a:2"),
        ("x " * 100, r"line 1, '(x )*x\.\.\.': expected"),
    ],
)
def test_garbage_is_named_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}"):
        parse_found_hosts(text, None)


@given(st.text(max_size=40))
def test_any_text_is_an_answer_or_refused_with_a_line(text: str) -> None:
    finding = Discovery("find.sh", 2).answered(text)
    assert finding.hosts is not None or "not a list of hosts: line " in finding.error


def _found(**hosts: int) -> Discovery:
    discovery = Discovery("find.sh", None)
    lines = "\n".join(f"{name}:{slots}" for name, slots in hosts.items())
    assert discovery.answered(lines) == Finding(hosts)
    return discovery


@pytest.mark.parametrize("trouble", [Trouble.FAILING, Trouble.SLOW])
def test_without_any_answer_trouble_is_an_error(trouble: Trouble) -> None:
    finding = Discovery("find.sh", None).failed(trouble, "why")
    assert finding == Finding(error=f"find.sh {trouble.value}: why")


def test_garbage_at_first_is_an_error() -> None:
    finding = Discovery("find.sh", None).answered("a:b")
    assert finding.error.startswith("find.sh prints what is not a list of hosts: line 1")


def test_later_troubles_are_told_once_each_and_their_end_once() -> None:
    discovery = _found(a=1)
    logs = [
        discovery.failed(Trouble.FAILING, "exit 1").log,
        discovery.failed(Trouble.FAILING, "exit 2").log,
        discovery.answered("!").log,
        discovery.answered("?").log,
        discovery.failed(Trouble.SLOW, "10 s").log,
        discovery.answered("a:1").log,
        discovery.answered("a:1").log,
        discovery.failed(Trouble.FAILING, "exit 3").log,
    ]
    assert logs == [
        "find.sh fails: exit 1; the last good answer is kept",
        "",
        "find.sh prints what is not a list of hosts: line 1, '!': expected host or host:slots; "
        "the last good answer is kept",
        "",
        "find.sh is too slow: 10 s; the last good answer is kept",
        "find.sh works again",
        "",
        "find.sh fails: exit 3; the last good answer is kept",
    ]


def test_the_last_good_answer_stays() -> None:
    discovery = _found(a=1, b=2)
    assert discovery.failed(Trouble.FAILING, "exit 1").hosts is None
    assert discovery.answered("garbage here").hosts is None
    assert discovery.hosts == {"a": 1, "b": 2}
    assert discovery.answered("").hosts == {}
