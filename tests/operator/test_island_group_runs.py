"""A run that is an island of a group: what it says until the group is known, what its trainer is told then, and who may reach it."""

from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import MANIFEST, put, running, said, status

from shoal.contracts.islands import IslandTerms
from shoal.contracts.run import RunConfig
from shoal_operator.api import TrainingRun
from shoal_operator.api.manifest import check
from shoal_operator.children.network import CHOSEN_PORTS
from shoal_operator.children.offline_filter import filter_training_run
from shoal_operator.children.own_kinds import References
from shoal_operator.children.trainer import trainer_command

OTHER = "ab" * 32
LIGHTHOUSE = "meet.example.com:29510"


def put_group(cluster: MemoryCluster, **group: Any) -> None:
    where = {} if {"serveLighthouse", "lighthouse"} & group.keys() else {"lighthouse": LIGHTHOUSE}
    put(cluster, trainer={"islands": {"innerSteps": 20, "group": {"name": "both", **where, **group}}})
    cluster.settle()


def own_key(cluster: MemoryCluster) -> str:
    return str(status(cluster)["islandPublicKey"])


def told(cluster: MemoryCluster) -> IslandTerms | None:
    found = cluster.get("ConfigMap", "sums-config")
    assert found is not None
    return RunConfig.from_json(found["data"]["run.json"]).islands


def test_a_run_has_its_key_before_its_group_is_known_and_says_what_to_do_with_it(cluster: MemoryCluster) -> None:
    put_group(cluster)
    waits = said(cluster, "Progressing")
    assert waits["reason"] == "Waiting"
    assert waits["message"] == (
        f"waits for trainer.islands.group.members; this run's entry is sums: {own_key(cluster)}; the other runs of group both have theirs in"
        " status.islandPublicKey"
    )
    assert said(cluster, "Ready")["message"] == waits["message"]
    assert cluster.get("Job", "sums-prepare") is None
    put_group(cluster, members={"sums": own_key(cluster), "products": OTHER})
    assert cluster.get("Job", "sums-prepare") is not None
    assert told(cluster) == IslandTerms(
        peers={"products": OTHER, "sums": own_key(cluster)},
        publisher="sums",
        lighthouse=f"http://{LIGHTHOUSE}",
        settings={"innerSteps": 20},
        group="both",
    )


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        (
            {"sums": OTHER, "products": "cd" * 32},
            f"{{where}} to list this run as sums: {{key}}; it lists {OTHER}",
        ),
        (
            {"sums": "{key}", "products": "{key}"},
            "distinct keys of products, sums in {where}: they share one",
        ),
    ],
)
def test_a_run_waits_while_its_list_of_members_is_wrong(
    cluster: MemoryCluster, members: dict[str, str], problem: str
) -> None:
    put_group(cluster)
    key = own_key(cluster)
    put_group(cluster, members={name: value.format(key=key) for name, value in members.items()})
    where = "trainer.islands.group.members"
    assert said(cluster, "Progressing")["message"] == "waits for " + problem.format(where=where, key=key)
    assert cluster.get("Job", "sums-prepare") is None


def test_the_run_that_serves_the_lighthouse_says_where_it_is(cluster: MemoryCluster) -> None:
    put_group(cluster, serveLighthouse=True)
    put_group(cluster, serveLighthouse=True, members={"sums": own_key(cluster), "products": OTHER})
    terms = told(cluster)
    assert terms is not None
    assert terms.lighthouse == f"http://{status(cluster)['lighthouse']}"
    assert status(cluster)["lighthouse"].endswith(":29510")


def test_the_address_that_a_cluster_chooses_for_the_lighthouse_is_known_before_the_members_are(
    cluster: MemoryCluster,
) -> None:
    served = {"serveLighthouse": True, "exposure": {"type": "NodePort", "nodeAddress": "192.0.2.7"}}
    put_group(cluster, **served)
    service = cluster.get("Service", "sums-lighthouse-public")
    assert service is not None
    service["spec"]["ports"][0]["nodePort"] = 31510  # an API server gives it
    cluster.objects.apply(service)
    cluster.settle()
    assert status(cluster)["lighthouse"] == "192.0.2.7:31510"
    assert cluster.get("StatefulSet", "sums-lighthouse") is None
    put_group(cluster, **served, members={"sums": own_key(cluster), "products": OTHER})
    running(cluster)
    assert status(cluster)["lighthouse"] == "192.0.2.7:31510"
    assert cluster.get("StatefulSet", "sums-lighthouse") is not None


def test_a_trainer_may_reach_a_lighthouse_at_a_port_of_a_node_of_its_own_cluster(cluster: MemoryCluster) -> None:
    """Policies see the packet when its target is the pod already, at the port at which it listens."""
    put_group(cluster, lighthouse="192.0.2.7:31510")
    members = {"sums": own_key(cluster), "products": OTHER}
    put_group(cluster, lighthouse="192.0.2.7:31510", members=members)
    policy = cluster.get("NetworkPolicy", "sums-trainer")
    assert policy is not None
    anywhere = [rule["ports"] for rule in policy["spec"]["egress"] if "to" not in rule]
    assert [{"protocol": "TCP", "port": 29510}, {"protocol": "TCP", "port": 31510}] in anywhere


def test_a_run_that_meets_elsewhere_has_no_lighthouse(cluster: MemoryCluster) -> None:
    put_group(cluster)
    assert status(cluster).get("lighthouse") is None


def test_a_run_of_no_group_has_no_such_key(cluster: MemoryCluster) -> None:
    cluster.settle()
    assert status(cluster).get("islandPublicKey") is None


def test_the_run_that_samples_for_the_offline_filter_is_no_island() -> None:
    group = {"name": "both", "lighthouse": LIGHTHOUSE, "members": {"sums": OTHER, "products": "cd" * 32}}
    spec = MANIFEST["spec"] | {
        "trainer": {"islands": {"group": group}},
        "tasks": {"environment": "arithmetic", "count": 64, "offlineFilter": {"samples": 8}},
    }
    made = filter_training_run(TrainingRun.model_validate(MANIFEST | {"spec": spec}), References(), suspend=False)
    assert made is not None
    assert "islands" not in made["spec"]["trainer"]
    assert check(made)[1] == []


@pytest.mark.parametrize("network", ["10.64.0.0/40", "300.1.1.0/24"])
def test_a_run_waits_while_a_network_is_invalid_and_makes_no_policy_of_it(cluster: MemoryCluster, network: str) -> None:
    put_group(cluster)
    put_group(cluster, members={"sums": own_key(cluster), "products": OTHER}, networks=[network])
    said_of = said(cluster, "Progressing")["message"]
    assert said_of.startswith("waits for ranges such as 10.64.0.0/14 in trainer.islands.group.networks: ")
    assert network in said_of
    assert cluster.get("NetworkPolicy", "sums-trainer") is None


def test_a_member_that_is_excluded_keeps_its_key_in_the_list_and_has_no_way_to_the_trainer(
    cluster: MemoryCluster,
) -> None:
    put_group(cluster)
    members = {"sums": own_key(cluster), "products": OTHER, "quotients": "cd" * 32}
    put_group(cluster, members=members)
    assert let_in(cluster) == {"products", "quotients"}
    put_group(cluster, members=members, excluded=["quotients"])
    assert let_in(cluster) == {"products"}
    terms = told(cluster)
    assert terms is not None
    assert (dict(terms.peers), terms.excluded) == (members, ["quotients"])


def let_in(cluster: MemoryCluster) -> set[str]:
    """Runs of this namespace whose trainers may reach this one's."""
    policy = cluster.get("NetworkPolicy", "sums-trainer")
    assert policy is not None
    callers = [caller for rule in policy["spec"]["ingress"] for caller in rule.get("from", [])]
    chosen = [each for one in callers for each in one.get("podSelector", {}).get("matchExpressions", [])]
    return {run for each in chosen if each["key"] == "shoal.dev/run" for run in each["values"]}


def test_a_list_with_a_mistake_leaves_the_trainer_that_runs_alone(cluster: MemoryCluster) -> None:
    put_group(cluster)
    members = {"sums": own_key(cluster), "products": OTHER}
    put_group(cluster, members=members)
    running(cluster)
    job = cluster.get("Job", "sums-trainer-1")
    assert job is not None
    put_group(cluster, members=members | {"quotients": OTHER})
    kept = cluster.get("Job", "sums-trainer-1")
    assert kept is not None
    assert kept["metadata"]["uid"] == job["metadata"]["uid"]
    assert "deletionTimestamp" not in kept["metadata"]
    assert peers(cluster) == members
    put_group(cluster, members=members | {"quotients": "cd" * 32})
    assert peers(cluster) == members | {"quotients": "cd" * 32}
    replaced = cluster.get("Job", "sums-trainer-1")
    assert replaced is None or "deletionTimestamp" in replaced["metadata"], (
        "a trainer learns of an island when it starts"
    )


def test_a_run_that_is_resumed_with_a_mistake_in_its_list_begins_no_attempt_and_says_why(
    cluster: MemoryCluster,
) -> None:
    put_group(cluster)
    members = {"sums": own_key(cluster), "products": OTHER}
    put_group(cluster, members=members)
    running(cluster)
    wrong = {"islands": {"innerSteps": 20, "group": {"name": "both", "lighthouse": LIGHTHOUSE}}}
    wrong["islands"]["group"]["members"] = members | {"quotients": OTHER}
    for suspend in (True, False):
        put(cluster, trainer=wrong, suspend=suspend)
        cluster.settle()
        cluster.pods_end()
    cluster.settle()
    assert status(cluster)["trainer"]["attempt"] == 1
    assert not any(name.startswith("sums-trainer") for name in cluster.names("Job"))
    problem = "waits for distinct keys of products, quotients in trainer.islands.group.members: they share one"
    assert said(cluster, "Ready")["message"].startswith(f"{problem}; waits for ")
    progressing = said(cluster, "Progressing")
    assert progressing["reason"] == "Waiting"
    assert progressing["message"].startswith(problem)
    assert said(cluster, "Exchanging")["message"] == f"{problem} (no trainer starts until the list is correct)"
    put_group(cluster, members=members)
    assert "sums-trainer-2" in cluster.names("Job")


def peers(cluster: MemoryCluster) -> dict[str, str]:
    terms = told(cluster)
    assert terms is not None
    return dict(terms.peers)


def test_a_trainer_of_a_group_with_several_processes_has_its_store_off_the_ports_that_are_open_to_other_runs() -> None:
    command = trainer_command("sums-trainer-1", "sums-ranks", 1, 2, other_runs=True)
    assert "--standalone" not in command
    assert command[command.index("--master-addr") + 1] == "127.0.0.1"
    port = int(command[command.index("--master-port") + 1])
    first, last = CHOSEN_PORTS
    assert not first <= port <= last
