"""The decisions of the local cluster that need no process."""

import pytest

from shoal_operator.children.trainer import trainer_command
from shoal_operator.local.containers import restart_pause
from shoal_operator.local.expand import UnsupportedField, command_line, environment, expand
from shoal_operator.local.probes import Probe, ProbeState, parse_probe


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
