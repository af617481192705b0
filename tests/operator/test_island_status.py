"""What the status of a run says of its exchanges: the last round, what was missed since, who differs in what, and who does not come."""

from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import at_version, put, running, said, status

from shoal.contracts.islands import IslandDifference, IslandsProgress
from shoal_operator.engine.events import transitions

OTHER_KEY = "ab" * 32
MADE = 1_795_000_000.5
DIFFERS = IslandDifference(island="products", setting="innerSteps", values="7 there, 20 here")


def put_two(cluster: MemoryCluster, **more: str) -> None:
    group = {"name": "both", "lighthouse": "meet.example.com:29510"}
    put(cluster, trainer={"islands": {"innerSteps": 20, "group": group}})
    cluster.settle()
    members = {"sums": status(cluster)["islandPublicKey"], "products": OTHER_KEY, **more}
    put(cluster, trainer={"islands": {"innerSteps": 20, "group": group | {"members": members}}})


@pytest.fixture
def grouped(cluster: MemoryCluster) -> MemoryCluster:
    """A run of a group that trains."""
    put_two(cluster)
    running(cluster)
    return cluster


def told(cluster: MemoryCluster, **islands: Any) -> dict[str, Any]:
    """The condition, once the trainer has said this of its exchanges."""
    at_version(cluster, 1, islands=IslandsProgress(**islands))
    cluster.settle()
    return said(cluster, "Exchanging")


def made(**more: Any) -> dict[str, Any]:
    return {"round": 4, "made_unix": MADE, "members": ["products", "sums"], **more}


def test_a_round_is_in_the_status_with_its_members(grouped: MemoryCluster) -> None:
    found = told(grouped, **made())
    assert (found["status"], found["reason"]) == ("True", "RoundMade")
    assert found["message"] == "round 4 was exchanged with products, sums"
    assert status(grouped)["islands"] == {
        "round": 4, "roundTime": "2026-11-18T11:06:40Z", "members": ["products", "sums"], "missed": 0, "differing": [], "absent": [],
    }  # fmt: skip
    assert said(grouped, "Ready")["message"] == "step 1 of 4", "what is as it should be takes no room in `kubectl get`"


def test_a_member_with_other_settings_is_in_condition_message_and_fields(grouped: MemoryCluster) -> None:
    found = told(grouped, **made(missed=1, differing=[DIFFERS], problem="settings differ"))
    message = "no exchange takes place while settings differ: products in innerSteps (7 there, 20 here); make them the same in all manifests"
    assert (found["status"], found["reason"], found["message"]) == ("False", "SettingsDiffer", message)
    ready = said(grouped, "Ready")
    assert (ready["status"], ready["message"]) == ("True", f"step 1 of 4; {message}"), "the run trains on"
    assert status(grouped)["islands"]["differing"] == [
        {"member": "products", "setting": "innerSteps", "values": "7 there, 20 here"}
    ]


def test_an_absent_member_is_named_and_a_few_missed_exchanges_are_not_a_failure(grouped: MemoryCluster) -> None:
    missing = {"absent": ["products"], "problem": "this island was not among those that met"}
    found = told(grouped, **made(missed=1, **missing))
    missed = "failed since round 4; products did not take part (this island was not among those that met)"
    assert (found["status"], found["message"]) == (
        "True",
        f"round 4 was exchanged with products, sums; 1 exchange {missed}",
    )
    found = told(grouped, **made(missed=3, **missing))
    assert (found["status"], found["reason"]) == ("False", "ExchangesMissed")
    assert found["message"] == f"3 exchanges {missed}"


def test_an_unreachable_lighthouse_blames_no_member(grouped: MemoryCluster) -> None:
    found = told(grouped, **made(missed=3, problem="the lighthouse at http://meet.example.com:29510 does not answer"))
    assert (found["status"], found["reason"]) == ("False", "ExchangesMissed")
    assert found["message"] == (
        "3 exchanges failed since round 4 (the lighthouse at http://meet.example.com:29510 does not answer)"
    )


def test_before_the_first_round_the_condition_is_unknown(grouped: MemoryCluster) -> None:
    assert said(grouped, "Exchanging")["status"] == "Unknown"
    found = told(grouped, round=0, missed=1, absent=["products"])
    assert (found["status"], found["reason"]) == ("Unknown", "NoRoundYet")
    assert found["message"] == "1 exchange failed; products did not take part"


def test_previous_figures_stay_while_the_orchestrator_is_unreachable(grouped: MemoryCluster) -> None:
    told(grouped, **made())
    grouped.progress = None
    grouped.settle()
    assert status(grouped)["islands"]["round"] == 4


def test_a_mistake_in_the_member_list_of_a_training_run_is_reported(grouped: MemoryCluster) -> None:
    told(grouped, **made())
    put_two(grouped, quotients=OTHER_KEY)
    grouped.settle()
    found = said(grouped, "Exchanging")
    assert (found["status"], found["reason"]) == ("False", "MembersInvalid")
    assert found["message"] == (
        "waits for distinct keys of products, quotients in trainer.islands.group.members: they share one"
        " (the trainer continues with the previous list)"
    )
    assert found["message"] in said(grouped, "Ready")["message"]
    put_two(grouped)
    grouped.settle()
    assert said(grouped, "Exchanging")["reason"] == "RoundMade"


def test_a_run_of_one_trainer_has_no_such_condition(cluster: MemoryCluster) -> None:
    running(cluster)
    assert all(each["type"] != "Exchanging" for each in status(cluster)["conditions"])


def test_exchanges_that_stop_are_an_event(grouped: MemoryCluster) -> None:
    told(grouped, **made())
    before = status(grouped)
    told(grouped, **made(missed=1, differing=[DIFFERS]))
    (warning,) = transitions(before, status(grouped))
    assert (warning.type, warning.reason) == ("Warning", "NotExchanging")
    assert "SettingsDiffer" in warning.note
