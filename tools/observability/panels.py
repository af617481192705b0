"""Words that the dashboards are written in: rows of panels, each with its queries, unit and runbook. Made into Grafana's JSON with its own SDK.

In: `Board`s of `dashboards`. Out: `built(board)`, the dashboard's JSON as a dict. Pure.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
RUN = 'namespace=~"$namespace",run=~"$run"'
"""Matchers of every query about runs."""
RUNBOOKS = "@runbooks@"
"""The chart puts `metrics.alerts.runbookUrl` in its place."""
WIDTH, HEIGHT = 24, 8


@dataclass(frozen=True)
class Panel:
    """One panel. `queries` are PromQL by legend. `runbook` names an alert."""

    title: str
    queries: Mapping[str, str]
    unit: str = "short"
    says: str = ""
    runbook: str = ""
    kind: str = "graph"
    """`graph`, `stat` (the newest value) or `table` (the newest values)."""
    stacked: bool = False


@dataclass(frozen=True)
class Board:
    """One dashboard: rows of panels by heading. `of_runs`: it has the variables namespace and run, and annotations of versions and incidents."""

    uid: str
    title: str
    says: str
    rows: Mapping[str, tuple[Panel, ...]] = field(default_factory=dict)
    of_runs: bool = True


VERSION_QUERY = f"changes(max by (namespace, run) (shoal_latest_version{{{RUN}}})[2m:30s]) > 0"
INCIDENT_QUERY = f"max by (namespace, run) (shoal_trainer_incident{{{RUN}}}) == 1 or max by (namespace, run) (shoal_trainer_paused{{{RUN}}}) == 1"
ANNOTATIONS = {"New policy version": ("green", VERSION_QUERY), "Incident": ("red", INCIDENT_QUERY)}
NAMESPACES = "label_values(shoal_latest_version, namespace)"
RUNS = 'label_values(shoal_latest_version{namespace=~"$namespace"}, run)'
OPERATOR_NAMESPACES = 'label_values(leader_election_master_status{name="shoal-operator"}, namespace)'


def built(board: Board) -> dict[str, Any]:
    """The dashboard as Grafana imports it. Ids are given in order, so that the same board is always the same text."""
    made = (
        Dashboard(board.title)
        .uid(board.uid)
        .description(board.says)
        .tags(["shoal"])
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .link(
            boards.DashboardLink("Shoal")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags(["shoal"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(boards.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    made = made.with_variable(_variable("namespace", NAMESPACES if board.of_runs else OPERATOR_NAMESPACES))
    if board.of_runs:
        made = made.with_variable(_variable("run", RUNS))
        for name, (colour, query) in ANNOTATIONS.items():
            made = made.annotation(
                boards.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(colour).expr(query)
            )
    number = 0
    for heading, panels in board.rows.items():
        made = made.with_row(boards.Row(heading))
        for panel in panels:
            number += 1
            made = made.with_panel(_panel(panel, number, WIDTH // min(len(panels), 3)))
    return _plain(made.build())


def _plain(made: dashboard.Dashboard) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(made, cls=JSONEncoder))
    for number, panel in enumerate(document["panels"], 1):
        panel["id"] = number
    return document


def _variable(name: str, query: str) -> boards.QueryVariable:
    return (
        boards.QueryVariable(name)
        .label(name.capitalize())
        .datasource(SOURCE)
        .query(query)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".+")
    )


def _panel(panel: Panel, number: int, width: int) -> Any:
    made: Any
    if panel.kind == "stat":
        made = stat.Panel()
    elif panel.kind == "table":
        made = table.Panel()
    else:
        made = timeseries.Panel().line_width(1).fill_opacity(15 if panel.stacked else 0)
        if panel.stacked:
            made = made.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    made = made.id(number).title(panel.title).datasource(SOURCE).unit(panel.unit).span(width).height(HEIGHT)
    if panel.says:
        made = made.description(panel.says)
    if panel.runbook:
        made = made.links(
            [
                boards.DashboardLink(f"Runbook: {panel.runbook}")
                .type(dashboard.DashboardLinkType.LINK)
                .url(f"{RUNBOOKS}/{panel.runbook}.md")
                .target_blank(True)
            ]
        )
    for index, (legend, query) in enumerate(panel.queries.items()):
        target = prometheus.Dataquery().ref_id(chr(ord("A") + index)).expr(query).legend_format(legend)
        if panel.kind == "table":
            target = target.instant().format(PromQueryFormat.TABLE)
        elif panel.kind == "stat":
            target = target.instant()
        else:
            target = target.range().exemplar("_bucket" in query)
        made = made.with_target(target)
    return made
