"""The Helm chart: it renders what is in the golden files, installs what `shoal_operator.install` prints, and refuses values that mean nothing.

`pytest --update-golden` writes `tests/charts/golden/*/out.yaml` anew; read the diff.
"""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm import CHART, render, run_helm
from servers import ROOT
from shoal.orchestrator.metrics import NODE_METRICS_PORT
from shoal_operator.children.names import PORTS
from shoal_operator.children.site import Site
from shoal_operator.install import USER_ID, aggregated, chart_permissions, objects

GOLDEN = ROOT / "tests" / "charts" / "golden"
CASES = sorted(GOLDEN.iterdir())


def without_crds(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """CRDs have golden files of their own: crds/."""
    return [each for each in made if each["kind"] != "CustomResourceDefinition"]


def by_identity(made: list[dict[str, Any]]) -> dict[tuple[str, str | None, str], dict[str, Any]]:
    return {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]): each for each in made}


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_the_chart_renders_what_is_in_the_golden_file(case: Path, request: pytest.FixtureRequest) -> None:
    made = without_crds(render("--values", case / "values.yaml"))
    text = yaml.safe_dump_all(made, sort_keys=False, width=120)
    expected = case / "out.yaml"
    if request.config.getoption("--update-golden"):
        expected.write_text(text)
    assert text == expected.read_text(), f"{expected} differs: run pytest --update-golden and read the diff"


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_the_linter_has_nothing_to_say(case: Path) -> None:
    said = run_helm("lint", "--strict", "--values", case / "values.yaml", CHART)
    assert "[WARNING]" not in said


@pytest.mark.parametrize("namespaces", [[], ["research", "staging"]])
def test_the_operator_is_the_one_that_its_own_program_prints(namespaces: list[str]) -> None:
    chart = by_identity(render("--set-json", f"operator.namespaces={json.dumps(namespaces)}"))
    for wanted in objects(namespaces):
        [(identity, _)] = by_identity([wanted]).items()
        found = chart[identity]
        wanted = copy.deepcopy(wanted)  # YAML shares what is the same
        for each in (wanted, found):
            each["metadata"].pop("labels")
            if each["kind"] == "Deployment":
                each["spec"]["template"]["metadata"].pop("labels")
        if wanted["kind"] == "Deployment":
            [container] = found["spec"]["template"]["spec"]["containers"]
            [expected] = wanted["spec"]["template"]["spec"]["containers"]
            options = container["args"][container["args"].index("--workers") :]
            assert options == ["--workers", "4", "--lease-seconds", "15"]  # the operator's own defaults, said aloud
            container["args"] = container["args"][: -len(options)]
            assert container.pop("imagePullPolicy") == "IfNotPresent"
            assert container["startupProbe"] == expected["startupProbe"]
        assert found == wanted


def test_permissions_are_those_that_the_operator_obeys() -> None:
    assert (CHART / "files" / "permissions.yaml").read_text() == chart_permissions(), "run `make crds`"


def test_roles_of_people_are_joined_to_those_of_kubernetes_and_can_be_left_out() -> None:
    def joined(made: list[dict[str, Any]]) -> dict[str, set[str]]:
        return {
            each["metadata"]["name"]: {label for label in each["metadata"]["labels"] if "/aggregate-to-" in label}
            for each in made
            if each["kind"] == "ClusterRole" and each["metadata"]["labels"]["app.kubernetes.io/name"] == "shoal"
        }

    assert joined(render()) == joined(aggregated())
    assert joined(render("--set", "people.enabled=false")) == {}


def test_crds_are_the_shipped_ones_and_outlive_the_release() -> None:
    made = [each for each in render() if each["kind"] == "CustomResourceDefinition"]
    shipped = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    assert [each["spec"] for each in made] == [each["spec"] for each in shipped]
    assert all(each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for each in made)
    going = [each for each in render("--set", "crds.keep=false") if each["kind"] == "CustomResourceDefinition"]
    assert len(going) == 4
    assert not any("annotations" in each["metadata"] for each in going)


def test_dashboards_are_the_generated_ones_with_links_to_the_runbooks() -> None:
    given = ["--set", "metrics.dashboards.enabled=true", "--set", "metrics.alerts.runbookUrl=https://wiki.example.org"]
    maps = [
        each
        for each in render(*given)
        if each["kind"] == "ConfigMap" and "grafana_dashboard" in each["metadata"]["labels"]
    ]
    made = {name: json.loads(text) for each in maps for name, text in each["data"].items()}
    generated = {path.name: path.read_text() for path in (CHART / "dashboards").iterdir()}
    assert len(made) == 6
    assert made == {
        name: json.loads(text.replace("@runbooks@", "https://wiki.example.org")) for name, text in generated.items()
    }
    assert all(len(text) < 1 << 19 for text in generated.values())  # etcd takes a mebibyte


def test_alerts_are_the_tested_ones_with_links_to_the_runbooks() -> None:
    given = ["--set", "metrics.alerts.enabled=true", "--set", "metrics.alerts.runbookUrl=https://wiki.example.org"]
    [rule] = [each for each in render(*given) if each["kind"] == "PrometheusRule"]
    text = (CHART / "files" / "alerts.yaml").read_text().replace("@runbooks@", "https://wiki.example.org")
    assert rule["spec"] == yaml.safe_load(text)


def test_prometheus_is_let_into_runs_by_the_ports_that_it_scrapes() -> None:
    given = ["--set", "metrics.runMonitor.enabled=true", "--set", "metrics.runMonitor.prometheusNamespace=monitoring"]
    made = render(*given, "--set", "operator.namespaces={a,b}")
    policies = [each for each in made if each["metadata"]["name"] == "shoal-metrics"]
    assert [each["metadata"]["namespace"] for each in policies] == ["a", "b"]
    apart = render(*given, "--set", "operator.namespaces={a,b}", "--set", "storage.namespaces={b,c}")
    assert {each["metadata"]["namespace"] for each in apart if each["metadata"]["name"] == "shoal-metrics"} == {*"abc"}
    [monitor] = [each for each in made if each["metadata"]["name"] == "shoal-runs"]
    scraped = [each["port"] for each in monitor["spec"]["podMetricsEndpoints"]]
    assert set(scraped) == {*PORTS} - {"redis", "nginx", "tracker", "ui", "lighthouse"}
    for policy in policies:
        [rule] = policy["spec"]["ingress"]
        assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
        let_in = {
            number for each in rule["ports"] for number in range(each["port"], each.get("endPort", each["port"]) + 1)
        }
        assert let_in == {PORTS[name] for name in scraped} | {
            NODE_METRICS_PORT
        }  # the monitor reaches it by relabelling
    assert not [each for each in render(given[0], given[1]) if each["metadata"]["name"] == "shoal-metrics"]


@pytest.mark.parametrize(("replicas", "stay", "made"), [(2, 2, False), (2, 5, False), (3, 2, True)])
def test_a_budget_that_no_drain_could_meet_is_not_made(replicas: int, stay: int, made: bool) -> None:
    given = ["--set", f"operator.replicas={replicas}", "--set", f"operator.podDisruptionBudget.minAvailable={stay}"]
    found = [each["spec"]["minAvailable"] for each in render(*given) if each["kind"] == "PodDisruptionBudget"]
    assert found == [stay] * made


def test_nothing_that_needs_other_crds_is_made_unasked() -> None:
    assert not {each["kind"] for each in render()} & {"PodMonitor", "PrometheusRule"}


def test_every_pod_of_the_chart_is_restricted_and_holds_no_token_but_the_operator() -> None:
    pods = []
    for each in render("--set", "minio.enabled=true"):
        if each["kind"] in ("Deployment", "StatefulSet", "Job"):
            pods.append((each["kind"], each["spec"]["template"]["spec"]))
        elif each["kind"] == "Pod":
            pods.append((each["kind"], each["spec"]))
    assert len(pods) == 4
    for kind, pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == USER_ID
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert kind == "Deployment" or pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


def test_keys_made_at_random_are_the_same_in_every_namespace_and_differ_between_installs() -> None:
    def keys() -> list[dict[str, str]]:
        made = render("--set", "minio.enabled=true", "--set", "storage.namespaces={a,b}")
        return [each["data"] for each in made if each["kind"] == "Secret"]

    first, again = keys(), keys()
    assert len(first) == 3  # and the release's own, which MinIO reads
    assert first[0] == first[1] == first[2]
    assert first[0] != again[0]


def test_no_secret_is_in_what_is_no_secret() -> None:
    given = ["--set", "minio.enabled=true", "--set", "storage.accessKey=the-access-key"]
    given += ["--set", "storage.secretKey=the-secret-key"]
    others = [each for each in render(*given) if each["kind"] != "Secret"]
    assert "the-secret-key" not in yaml.safe_dump_all(others)
    assert "the-access-key" not in yaml.safe_dump_all(others)


DIGEST = f"sha256:{'1' * 64}"


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """The chart with the lock of a release that has an operator and relays."""
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    digests = {f"shoal/{role}:{version}": DIGEST for role in ("operator", "relay")}
    made = shutil.copytree(CHART, tmp_path / "shoal")
    lock = {"registry": "registry.example.org/project", "digests": digests}
    (made / "files" / "images.lock.json").write_text(json.dumps(lock))
    return made


def operators_container(chart: Path, *options: str) -> dict[str, Any]:
    printed = run_helm("template", "shoal", chart, "--namespace", "shoal-system", *options)
    [made] = [each for each in yaml.safe_load_all(printed) if each and each["kind"] == "Deployment"]
    container: dict[str, Any] = made["spec"]["template"]["spec"]["containers"][0]
    return container


def runs_of(container: dict[str, Any]) -> dict[str, Any]:
    arguments = container["args"]
    made: dict[str, Any] = json.loads(arguments[arguments.index("--runs") + 1])
    return made


def test_a_released_chart_pulls_by_the_digests_of_its_lock(released: Path) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    container = operators_container(released)
    assert container["image"] == f"registry.example.org/project/shoal/operator:{version}@{DIGEST}"
    site = Site.model_validate(runs_of(container))
    assert site.image_registry == "registry.example.org/project"
    assert site.image_digests == {f"shoal/{role}:{version}": DIGEST for role in ("operator", "relay")}


def test_what_values_say_of_images_wins_over_the_lock(released: Path) -> None:
    mine = operators_container(released, "--set", "operator.image.repository=mirror.example.org/shoal/operator")
    assert mine["image"].startswith("mirror.example.org/shoal/operator:")
    assert "@" not in mine["image"]
    assert operators_container(released, "--set", "operator.image.tag=dev")["image"] == "shoal/operator:dev"
    mirrored = runs_of(operators_container(released, "--set", "runs.imageRegistry=mirror.example.org"))
    assert mirrored["imageRegistry"] == "mirror.example.org"
    assert len(mirrored["imageDigests"]) == 2


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("operator.replica=3", "additional properties 'replica' not allowed"),
        ("operator.replicas=0", "minimum: got 0, want 1"),
        ("operator.image.pullPolicy=Sometimes", "value must be one of 'Always', 'IfNotPresent', 'Never'"),
        ("operator.image.digest=latest", "does not match pattern"),
        ("operator.namespaces={Research}", "'Research' does not match pattern"),
        ("minio.bucket=Rollouts", "'Rollouts' does not match pattern"),
        ("minio.persistence.size=many", "'many' does not match pattern"),
        ("storage.accessKey=alone", "/storage"),
        ("metrics.alerts.runbookUrl=https://wiki.example.org/", "does not match pattern"),
        ("metrics.dashboards.enabled=maybe", "got string, want boolean"),
    ],
)
def test_a_value_that_means_nothing_is_refused_with_its_place(value: str, said: str) -> None:
    complaint = run_helm("template", "shoal", CHART, "--set", value, ok=False)
    assert said in complaint
    assert value.split(".")[0] in complaint


def test_every_value_is_described_and_every_default_is_in_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def missing(value: Any, node: dict[str, Any], place: str) -> list[str]:
        if "properties" not in node:
            return []
        wrong = [f"{place}{name}" for name in value if name not in node["properties"]]
        wrong += [f"{place}{name}: no default" for name in node["properties"] if name not in value and name != "global"]
        for name, below in node["properties"].items():
            if "description" not in below and place != "operator.resources.":
                wrong.append(f"{place}{name}: no description")
            if isinstance(value.get(name), dict) and "requests" not in value[name]:
                wrong += missing(value[name], below, f"{place}{name}.")
        return wrong

    assert missing(values, schema, "") == []
