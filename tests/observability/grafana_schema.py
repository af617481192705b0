"""What a dashboard must be for Grafana to take it and draw it, as a JSON schema: types, ranges and words of its published kind `dashboard`, and
what its server refuses when one is saved (an empty title, a uid that is long or has other characters, the id of another installation).

Grafana itself was never started here. What the generator writes is all that is allowed, so that a field that Grafana would overlook is refused too.
"""

from typing import Any

from jsonschema import Draft202012Validator

UNITS = ["Bps", "bytes", "ops", "percentunit", "reqps", "s", "sci", "short"]
"""Ids of units that panels here may have; one that Grafana does not know is drawn as text after the number."""


def _record(required: str, optional: str = "", **fields: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    wanted, allowed = required.split(), [*required.split(), *optional.split()]
    assert set(allowed) == fields.keys(), set(allowed) ^ fields.keys()
    return {"type": "object", "required": wanted, "additionalProperties": False, "properties": fields}


def _list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _number(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


TEXT, FLAG = {"type": "string"}, {"type": "boolean"}
WORDS = {"type": "string", "minLength": 1}
SOURCE = _record("type uid", type={"const": "prometheus"}, uid=WORDS)
PLACE = _record("h w x y", h=_number(1, 1000), w=_number(1, 24), x=_number(0, 23), y=_number(0, 100_000))
LINK = _record(
    "title type icon tooltip tags asDropdown targetBlank includeVars keepTime", "url",
    title=WORDS, type={"enum": ["link", "dashboards"]}, icon=TEXT, tooltip=TEXT, tags=_list_of(WORDS), asDropdown=FLAG, targetBlank=FLAG,
    includeVars=FLAG, keepTime=FLAG, url=WORDS,
)  # fmt: skip
TARGET = _record(
    "expr refId legendFormat", "instant range exemplar format",
    expr=WORDS, refId={"type": "string", "pattern": "^[A-Z]$"}, legendFormat=WORDS, instant=FLAG, range=FLAG, exemplar=FLAG,
    format={"enum": ["time_series", "table", "heatmap"]},
)  # fmt: skip
CUSTOM = _record(
    "", "lineWidth fillOpacity stacking",
    lineWidth=_number(0, 10), fillOpacity=_number(0, 100),
    stacking=_record("mode", mode={"enum": ["none", "normal", "percent"]}),
)  # fmt: skip
FIELDS = _record(
    "defaults overrides", defaults=_record("unit", "custom", unit={"enum": UNITS}, custom=CUSTOM), overrides=_list_of({"type": "object"}),
)  # fmt: skip
ROW = _record(
    "type collapsed id panels title gridPos",
    type={"const": "row"}, collapsed=FLAG, id=_number(1, 2**32 - 1), panels={"type": "array", "maxItems": 0}, title=WORDS, gridPos=PLACE,
)  # fmt: skip
PANEL = _record(
    "type id targets title datasource gridPos fieldConfig", "description transparent repeatDirection links",
    type={"enum": ["timeseries", "stat", "table"]}, id=_number(1, 2**32 - 1), targets={**_list_of(TARGET), "minItems": 1, "maxItems": 26},
    title=WORDS, datasource=SOURCE, gridPos=PLACE, fieldConfig=FIELDS, description=WORDS, transparent=FLAG,
    repeatDirection={"enum": ["h", "v"]}, links=_list_of(LINK),
)  # fmt: skip
NAME = {"type": "string", "pattern": r"^(?!__)\w+$", "maxLength": 50}
"""Of a variable: names with two underscores before them are Grafana's own."""
VARIABLE = _record(
    "type name query", "label skipUrlSync datasource multi allowCustomValue refresh sort includeAll allValue auto auto_min auto_count",
    type={"enum": ["datasource", "query"]}, name=NAME, query=WORDS, label=WORDS, skipUrlSync=FLAG, datasource=SOURCE, multi=FLAG,
    allowCustomValue=FLAG, refresh=_number(0, 2), sort=_number(0, 8), includeAll=FLAG, allValue=WORDS, auto=FLAG, auto_min=WORDS,
    auto_count=_number(1, 1000),
)  # fmt: skip
ANNOTATION = _record(
    "name datasource enable iconColor expr", "hide builtIn",
    name=WORDS, datasource=SOURCE, enable=FLAG, iconColor=WORDS, expr=WORDS, hide=FLAG, builtIn=_number(0, 1),
)  # fmt: skip
DASHBOARD = _record(
    "schemaVersion uid title description tags timezone editable graphTooltip time refresh panels templating annotations links",
    "fiscalYearStartMonth",
    schemaVersion=_number(36, 41), uid={"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"}, title=WORDS, description=WORDS,
    tags={**_list_of({"type": "string", "minLength": 1, "maxLength": 50}), "uniqueItems": True}, timezone={"enum": ["browser", "utc"]},
    editable=FLAG, graphTooltip=_number(0, 2), time=_record("from to", **{"from": WORDS, "to": WORDS}),
    refresh={"type": "string", "pattern": "^([5-9]|[1-9][0-9]+)s$|^[1-9][0-9]*[mhd]$"},  # the server's own limit is five seconds
    panels=_list_of({"if": {"properties": {"type": {"const": "row"}}}, "then": ROW, "else": PANEL}),
    templating=_record("list", list=_list_of(VARIABLE)), annotations=_record("", "list", list=_list_of(ANNOTATION)), links=_list_of(LINK),
    fiscalYearStartMonth=_number(0, 11),
)  # fmt: skip
Draft202012Validator.check_schema(DASHBOARD)


def refusals(document: Any) -> list[str]:
    """What is wrong with a dashboard, each as `place: what`; nothing for one that Grafana takes."""
    found = Draft202012Validator(DASHBOARD).iter_errors(document)
    return [f"{'/'.join(map(str, error.absolute_path)) or 'dashboard'}: {error.message[:300]}" for error in found]
