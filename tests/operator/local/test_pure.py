"""The decisions of the local cluster that need no process."""

import pytest

from shoal.contracts.machine import OWNERS_CHOICES
from shoal.environments.base import TRUSTED_VARIABLE
from shoal.environments.places import FOLDERS_VARIABLE
from shoal.rewards.sandbox.isolation import CHOICE_VARIABLE
from shoal_operator.children.trainer import trainer_command
from shoal_operator.local.containers import restart_pause
from shoal_operator.local.expand import NotThere, UnsupportedField, command_line, environment, expand
from shoal_operator.local.probes import Probe, ProbeState, parse_probe
from shoal_operator.local.run import read_secret


@pytest.mark.parametrize(
    ("text", "result"),
    [("$(A)/x", "1/x"), ("$(B)", "$(B)"), ("$$(A)", "$(A)"), ("$A", "$A"), ("", "")],
)
def test_references_are_expanded_as_kubernetes_does(text: str, result: str) -> None:
    assert expand(text, {"A": "1"}) == result


def test_the_pods_own_folder_and_address_win_over_what_the_object_says() -> None:
    made = environment(
        {"env": [{"name": "SHOAL_HOME", "value": "/shoal"}, {"name": "DATA", "value": "$(SHOAL_HOME)/data"}]},
        home="/runs/a",
        address="127.64.0.2",
        pod="a-0",
        path="/bin",
        caller={},
        lookup=lambda kind, name: None,
        where="pod a-0",
    )
    assert made["SHOAL_HOME"] == "/runs/a"
    assert made["DATA"] == "/runs/a/data"
    assert made["SHOAL_BIND"] == "127.64.0.2"


def test_a_container_without_a_command_is_refused() -> None:
    with pytest.raises(UnsupportedField, match="has no command"):
        command_line({"args": ["x"]}, {}, "pod a, container b")


def test_trainers_of_a_group_with_several_processes_each_choose_a_port_of_their_own() -> None:
    made = trainer_command("sums-trainer-1", "sums-ranks", 1, 2, other_runs=True)
    there = command_line({"command": made}, {}, "pod a, container trainer")
    alone = trainer_command("sums-trainer-1", "sums-ranks", 1, 2)
    assert "29500" in made
    assert there == command_line({"command": alone}, {}, "pod a, container trainer")
    assert "--standalone" in there


def test_the_first_restart_is_at_once_and_later_ones_wait_longer_up_to_a_limit() -> None:
    assert [restart_pause(failures) for failures in (1, 2, 3, 4, 7, 20)] == [0, 1, 2, 4, 30, 30]


def test_a_probe_fails_only_after_as_many_failures_in_a_row_as_its_threshold() -> None:
    state = ProbeState(Probe(1, None, 0, 1, 1, failure_threshold=2, success_threshold=1), started=0.0)
    for outcome in ("no", None, "no"):
        state.record(outcome, 0.0)
        assert not state.failing
    state.record("no", 0.0)
    assert state.failing


def test_exec_probes_are_refused() -> None:
    with pytest.raises(UnsupportedField, match="neither httpGet nor tcpSocket"):
        parse_probe({"exec": {"command": ["true"]}}, "pod a")


# Variables from Secrets.

OBJECTS = {
    ("Secret", "hub"): {"data": {"TOKEN": "c2VjcmV0"}},
    ("ConfigMap", "hub"): {"data": {"ENDPOINT": "https://hub.example", "PATH": "/theirs", "SHOAL_POD": "other"}},
}


def variables(**container: object) -> dict[str, str]:
    return environment(
        container,
        home="/runs/a",
        address="127.64.0.2",
        pod="a-0",
        path="/bin",
        caller=dict.fromkeys((*OWNERS_CHOICES, "HF_TOKEN"), "ours"),
        lookup=lambda kind, name: OBJECTS.get((kind, name)),
        where="pod a-0",
    )


def test_only_the_owners_choices_come_from_the_caller_unless_the_container_says_otherwise() -> None:
    assert OWNERS_CHOICES == (FOLDERS_VARIABLE, TRUSTED_VARIABLE, CHOICE_VARIABLE)
    made = variables(env=[{"name": CHOICE_VARIABLE, "value": "landlock"}])
    assert "HF_TOKEN" not in made
    assert [made[name] for name in OWNERS_CHOICES] == ["ours", "ours", "landlock"]


def key(name: str, key: str, **more: object) -> list[dict[str, object]]:
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": key} | more}}]


def test_keys_of_objects_become_variables_and_never_one_that_is_the_pods_own() -> None:
    made = variables(envFrom=[{"configMapRef": {"name": "hub"}}, {"prefix": "HF_", "secretRef": {"name": "hub"}}])
    assert (made["ENDPOINT"], made["HF_TOKEN"]) == ("https://hub.example", "secret")
    assert (made["PATH"], made["SHOAL_POD"]) == ("/bin", "a-0")


def test_a_secrets_key_is_a_value() -> None:
    assert variables(env=key("hub", "TOKEN"))["HF_TOKEN"] == "secret"


@pytest.mark.parametrize(
    ("container", "waits_for"),
    [
        ({"env": key("other", "TOKEN")}, "Secret other"),
        ({"env": key("hub", "PASSWORD")}, "key PASSWORD in Secret hub"),
        ({"envFrom": [{"secretRef": {"name": "other"}}]}, "Secret other"),
        ({"envFrom": [{"configMapRef": {"name": "other"}}]}, "ConfigMap other"),
    ],
)
def test_a_pod_waits_for_what_is_not_there_yet(container: dict[str, object], waits_for: str) -> None:
    with pytest.raises(NotThere, match=f"^pod a-0: waits for {waits_for}$"):
        variables(**container)


def test_what_is_optional_is_left_out() -> None:
    absent = [{"secretRef": {"name": "other", "optional": True}}]
    made = variables(env=key("hub", "PASSWORD", optional=True), envFrom=absent)
    assert "HF_TOKEN" not in made
    assert "HF_TOKEN" not in variables(env=key("other", "TOKEN", optional=True))


def test_a_secret_is_made_of_variables_by_name_or_refused_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "planted")
    monkeypatch.delenv("HF_OTHER", raising=False)
    assert read_secret("hub=HF_TOKEN")["stringData"] == {"HF_TOKEN": "planted"}
    with pytest.raises(ValueError, match=r"^--secret hub: HF_OTHER is not in your environment; give") as caught:
        read_secret("hub=HF_TOKEN,HF_OTHER")
    assert "planted" not in str(caught.value)
