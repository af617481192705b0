"""Pages that are made from the code are those of the code, and say what it says."""

import re

import pytest
import yaml
from tools.docs.__main__ import files
from tools.docs.cli import program, verbs
from tools.docs.http import apps, routes

from servers import ROOT
from shoal.orchestrator.http import service
from shoal.orchestrator.metrics import NODE_METRICS_PORT
from shoal_operator.children.names import PORTS

NAMES = (
    "docs/benchmarks/gpu.md",
    "docs/cli.md",
    "docs/http.md",
    "docs/model-types.md",
    "docs/parquet.md",
    "docs/ports.md",
)


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return files()


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_page_is_what_the_code_says(name: str, made: dict[str, str]) -> None:
    assert (ROOT / name).read_text() == made[name], "run `make docs`"


def test_nothing_is_generated_that_no_test_compares(made: dict[str, str]) -> None:
    assert set(made) == set(NAMES)


def test_every_verb_with_every_option_is_on_the_page_of_the_command_line(made: dict[str, str]) -> None:
    for path, command in verbs(program()):
        section = made["docs/cli.md"].partition(f"## {' '.join(path)}\n")[2].partition("\n## ")[0]
        for option in (option for parameter in command.params for option in parameter.opts if len(path) > 1):
            assert not option.startswith("--") or option == "--help" or option in section, f"{path}: {option}"


def test_who_may_call_a_route_is_read_from_its_handler() -> None:
    signers = {(route.method, route.path): route.signer for route in routes(apps()["orchestrator"])}
    assert signers["POST", "/v1/versions"] == "trainer"
    assert signers["POST", "/v1/verdicts"] == "validator"
    assert signers["POST", "/v1/heartbeats"] == "node"
    assert signers["GET", "/v1/run"] == ""


def test_every_route_but_the_open_ones_is_signed_by_somebody() -> None:
    unsigned = {
        (service, route.path)
        for service in ("discovery", "orchestrator")
        for route in routes(apps()[service])
        if not route.signer
    }
    keys = {("orchestrator", "/v1/keys"), ("discovery", "/v1/keys")}  # what they answer proves itself
    assert unsigned <= keys | {("orchestrator", "/v1/run"), ("orchestrator", "/v1/staging"), ("discovery", "/v1/join")}


def test_every_signed_body_is_a_document_with_a_section(made: dict[str, str]) -> None:
    page = made["docs/http.md"]
    linked = set(re.findall(r"\]\(#([\w-]+)\)", page))
    sections = {line[4:].lower() for line in page.splitlines() if line.startswith("### ")}
    assert linked <= sections
    for name, app in apps().items():
        for route in routes(app):
            signed = route.signer and not route.path.startswith("/v1/admin")
            needs_body = route.method == "POST" and name in ("discovery", "orchestrator") and signed
            assert not needs_body or route.body, f"{name} {route.path}: tools/docs/http.py finds no body"


def test_the_table_of_ports_has_every_port_of_a_pod(made: dict[str, str]) -> None:
    rows = {line.split(" | ")[0].lstrip("| ") for line in made["docs/ports.md"].splitlines()}
    assert {str(port) for port in PORTS.values()} | {"8443", "29500", str(NODE_METRICS_PORT)} <= rows
    assert str(service.PORT) in rows


def test_the_table_of_ports_says_who_reaches_the_pods_of_the_chart(made: dict[str, str]) -> None:
    cells = [[cell.strip() for cell in line.split("|")] for line in made["docs/ports.md"].splitlines()]
    callers = {tuple(row[1:3]): row[5] for row in cells if len(row) == 7}
    golden = ROOT / "tests" / "charts" / "golden" / "first_try" / "out.yaml"
    objects = [each for each in yaml.safe_load_all(golden.read_text()) if each]
    rules = {
        each["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"]: rule
        for each in objects
        if each["kind"] == "NetworkPolicy"
        for rule in each["spec"]["ingress"]
    }
    assert set(rules) == {"shoal-operator", "minio"}
    for name, rule in rules.items():
        [port] = [each["port"] for each in rule["ports"]]
        anybody = "from" not in rule
        assert (callers[str(port), name.removeprefix("shoal-")] == "any pod of the cluster") == anybody
    declared = {
        str(port["containerPort"])
        for each in objects
        if each["kind"] in ("Deployment", "StatefulSet")
        for container in each["spec"]["template"]["spec"]["containers"]
        for port in container.get("ports", [])
    }
    assert declared <= {port for port, _ in callers}


def test_the_status_page_counts_metrics_alerts_and_dashboards_as_they_are() -> None:
    [row] = [
        line for line in (ROOT / "docs" / "status.md").read_text().splitlines() if line.startswith("| metrics, alerts")
    ]
    metrics = set(re.findall(r"^\| `(shoal_\w+)", (ROOT / "docs" / "metrics.md").read_text(), re.M))
    alerts = re.findall(r"^ *- alert: ", (ROOT / "charts" / "shoal" / "files" / "alerts.yaml").read_text(), re.M)
    dashboards = list((ROOT / "charts" / "shoal" / "dashboards").glob("*.json"))
    assert f"{len(metrics)} metrics" in row
    assert f"{len(alerts)} alerts" in row
    assert len(dashboards) == 6
    assert "six dashboards" in row
