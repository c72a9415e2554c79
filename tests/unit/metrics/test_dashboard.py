"""Grafana's dashboard asks for what the endpoint has, and its panels have places of their own."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from horovod.metrics.counters import CounterTotals
from horovod.metrics.endpoint import JobCollector
from horovod.metrics.setup import REPORT_TIME

DASHBOARD = Path(__file__).parents[3] / "packaging" / "grafana" / "horovod.json"
# What Prometheus adds to every number, and Grafana to every query.
SCRAPED = {"job", "instance"}
BUILT_IN = {"__rate_interval", "__range", "__all"}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def queries(dashboard: dict[str, Any]) -> list[str]:
    """All that the dashboard asks Prometheus for."""
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    variables = dashboard["templating"]["list"]
    return found + [each["query"]["query"] for each in variables if each["type"] == "query"]


def exposed() -> dict[str, set[str]]:
    """The labels of each number of the endpoint."""
    numbers = {0: {**CounterTotals().read(None), REPORT_TIME: 1.0}}
    families = JobCollector(lambda: numbers, 1).collect()
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def test_the_endpoint_has_all_that_is_asked_for_and_all_of_it_is_shown(queries: list[str]) -> None:
    asked = set(re.findall(r"\bhorovod_\w+", " ".join(queries)))
    assert asked == set(exposed())


def test_labels_are_those_of_the_endpoint(queries: list[str]) -> None:
    labels = exposed()
    for query in queries:
        for name, matchers in re.findall(r"(horovod_\w+)\{([^}]*)\}", query):
            used = {matcher.partition("=")[0] for matcher in matchers.split(",")}
            assert used <= labels[name] | SCRAPED, query
        for grouped in re.findall(r"by \((\w+)\)", query):
            assert all(grouped in labels[name] for name in re.findall(r"horovod_\w+", query)), query


def test_counters_are_read_as_rates(queries: list[str]) -> None:
    for query in queries:
        if not query.startswith("label_values"):
            counters = re.findall(r"horovod_\w+_total", query)
            assert len(re.findall(r"(?:rate|increase)\(horovod_\w+_total\{", query)) == len(
                counters
            )


def test_variables_are_declared(dashboard: dict[str, Any], queries: list[str]) -> None:
    declared = {each["name"] for each in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard)))
    assert used - BUILT_IN == declared
    assert all(query.count(bracket[0]) == query.count(bracket[1]) for query in queries
               for bracket in ("()", "{}", "[]"))  # fmt: skip


def test_legends_have_the_labels_of_their_query(dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                (name,) = re.findall(r"horovod_\w+", target["expr"])[:1]
                assert label in exposed()[name]
            assert target["datasource"] == panel["datasource"]


def test_panels_have_places_and_numbers_of_their_own(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {panel["type"] for panel in panels} == {"row", "stat", "timeseries"}
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


def test_it_can_be_imported(dashboard: dict[str, Any]) -> None:
    """What Grafana's schema of a dashboard requires, and what ties one to a data source."""
    assert dashboard["title"] == "Horovod"
    assert dashboard["schemaVersion"] >= 36
    assert "id" not in dashboard  # Grafana gives the number
    sources = {
        json.dumps(panel["datasource"]) for panel in dashboard["panels"] if panel.get("targets")
    }
    assert sources == {'{"type": "prometheus", "uid": "${datasource}"}'}
