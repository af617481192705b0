"""The committed dashboards are what Grafana imports: by a schema of what it refuses, and by its own SDK, which loses what it does not know."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from grafana_schema import refusals

from servers import ROOT

FILES = sorted((ROOT / "charts" / "shoal" / "dashboards").glob("*.json"))
Change = Callable[[dict[str, Any]], object]


def read_by_the_sdk(document: dict[str, Any]) -> dict[str, Any]:
    """The dashboard as the SDK reads it and writes it again."""
    made: dict[str, Any] = json.loads(json.dumps(Dashboard.from_json(document), cls=JSONEncoder))
    return made


def lost(before: Any, after: Any, place: str = "") -> list[str]:
    """Places of `before` that `after` has not, or has otherwise."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            found
            for name, value in before.items()
            for found in (lost(value, after[name], f"{place}/{name}") if name in after else [f"{place}/{name}"])
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            found
            for number, (one, other) in enumerate(zip(before, after, strict=True))
            for found in lost(one, other, f"{place}/{number}")
        ]
    return [] if before == after else [place]


def test_there_are_six() -> None:
    assert len(FILES) == 6


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_committed_dashboard_is_one_that_grafana_takes(path: Path) -> None:
    document = json.loads(path.read_text())
    assert refusals(document) == []
    assert document["uid"] == path.stem
    assert lost(document, read_by_the_sdk(document)) == []


def first_panel(document: dict[str, Any]) -> dict[str, Any]:
    return next(panel for panel in document["panels"] if panel["type"] != "row")


REFUSED: dict[str, tuple[Change, str]] = {
    "no title": (lambda made: made.update(title=""), "title: "),
    "a long uid": (lambda made: made.update(uid="x" * 41), "uid: "),
    "a uid with other characters": (lambda made: made.update(uid="shoal/run"), "uid: "),
    "an id of another installation": (lambda made: made.update(id=7), "dashboard: "),
    "a refresh below the server's limit": (lambda made: made.update(refresh="1s"), "refresh: "),
    "a time without an end": (lambda made: made["time"].pop("to"), "time: "),
    "one tag twice": (lambda made: made.update(tags=["shoal", "shoal"]), "tags: "),
    "wrapped as for the HTTP API": (lambda made: made.update(dashboard={}), "dashboard: "),
    "a panel beyond the grid": (lambda made: first_panel(made)["gridPos"].update(w=25), "gridPos/w: "),
    "a panel without height": (lambda made: first_panel(made)["gridPos"].update(h=0), "gridPos/h: "),
    "a panel of an unknown type": (lambda made: first_panel(made).update(type="timeserie"), "type: "),
    "a panel without a query": (lambda made: first_panel(made).update(targets=[]), "targets: "),
    "an empty query": (lambda made: first_panel(made)["targets"][0].update(expr=""), "targets/0/expr: "),
    "a query without a letter": (lambda made: first_panel(made)["targets"][0].update(refId=""), "targets/0/refId: "),
    "an unknown unit": (lambda made: first_panel(made)["fieldConfig"]["defaults"].update(unit="secs"), "unit: "),
    "a data source by name": (lambda made: first_panel(made).update(datasource="Prometheus"), "datasource: "),
    "a variable with Grafana's own name": (lambda made: made["templating"]["list"][0].update(name="__range"), "name: "),
    "a variable of an unknown type": (lambda made: made["templating"]["list"][0].update(type="querry"), "type: "),
    "a mark without a query": (lambda made: made["annotations"]["list"][0].pop("expr"), "annotations/list/0: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_grafana_refuses_is_found(name: str) -> None:
    change, said = REFUSED[name]
    document = json.loads((ROOT / "charts/shoal/dashboards/shoal-run-overview.json").read_text())
    broken = copy.deepcopy(document)
    change(broken)
    found = refusals(broken)
    assert len(found) == 1
    assert said in found[0]


def test_a_field_that_the_sdk_does_not_know_is_found() -> None:
    document = json.loads(FILES[0].read_text())
    document["panels"][1]["legendFormat"] = "here it is overlooked"
    document["refreshh"] = "5s"
    assert sorted(lost(document, read_by_the_sdk(document))) == ["/panels/1/legendFormat", "/refreshh"]
