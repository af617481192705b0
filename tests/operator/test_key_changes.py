"""Keys of a run are replaced by its spec: Secrets, roster, and what starts again. A stop between any two steps leads to the same end."""

import base64
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import prepared, put, running, said, status

from shoal.contracts.roster import ROLES, Roster, key_digest, verified_roster
from shoal.contracts.run import NodeConfig, RunConfig
from shoal.contracts.signed import Signed, sign
from shoal.contracts.trust import OVERLAP_SECONDS
from shoal.crypto.keys import PrivateKey
from shoal_operator.engine.cluster import ClusterError, Object
from shoal_operator.reconcile import reconcile

WORKLOADS = ("Deployment", "StatefulSet", "Job")


class Stopped(Exception):
    """The operator was killed."""


class FragileCluster(MemoryCluster):
    """Ends the operator before or after a given write."""

    left: int | None = None
    before = True

    def apply(self, wanted: Object) -> Object:
        if self.left is None:
            return super().apply(wanted)
        self.left -= 1
        if self.left < 0 and self.before:
            raise Stopped
        made = super().apply(wanted)
        if self.left < 0:
            raise Stopped
        return made


def roster_of(cluster: MemoryCluster) -> Signed[Roster]:
    found = cluster.get("Secret", "sums-roster")
    assert found is not None
    return Signed[Roster].from_json(base64.b64decode(found["data"]["roster.json"]))


def config_of(cluster: MemoryCluster) -> RunConfig:
    found = cluster.get("ConfigMap", "sums-config")
    assert found is not None
    return RunConfig.from_json(found["data"]["run.json"])


def key_of(cluster: MemoryCluster, secret: str, entry: str = "role.pem") -> str:
    found = cluster.get("Secret", secret)
    assert found is not None, secret
    return PrivateKey.from_pem(base64.b64decode(found["data"][entry])).public


def templates(cluster: MemoryCluster) -> dict[str, Any]:
    """What makes pods start again, by workload."""
    found = [each for kind in WORKLOADS for each in cluster.objects.find(kind)]
    return {each["metadata"]["name"]: each["spec"]["template"] for each in found}


def shown(cluster: MemoryCluster) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in status(cluster)["keys"]}


def test_a_new_run_fixes_the_run_key_after_the_first(cluster: MemoryCluster) -> None:
    running(cluster)
    roster = roster_of(cluster).document
    assert roster.generation == 1
    assert roster.next_run_key == key_digest(key_of(cluster, "sums-run-key-2", "run.pem"))
    assert config_of(cluster).roster == roster_of(cluster)
    assert shown(cluster)["run"] == {"name": "run", "generation": 1, "fingerprint": config_of(cluster).run_key[:16]}
    assert [each["name"] for each in status(cluster)["keys"]] == ["run", *ROLES]


def test_a_run_of_an_earlier_operator_keeps_its_roster_and_its_pods(cluster: MemoryCluster) -> None:
    running(cluster)
    for name in ("sums-roster", "sums-run-key-2"):  # which 0.2.0 does not make
        cluster.objects.remove("Secret", name)
    before, pods = config_of(cluster).roster, templates(cluster)
    cluster.settle()
    assert roster_of(cluster) == before == config_of(cluster).roster
    assert templates(cluster) == pods


def test_a_planned_change_starts_only_the_parts_again_that_must(cluster: MemoryCluster) -> None:
    running(cluster)
    old, before = roster_of(cluster), templates(cluster)
    put(cluster, keys={"validator": {"generation": 2}})
    cluster.settle()
    new = roster_of(cluster)
    roster = verified_roster(new, old.signer)
    assert new.signer == old.signer
    assert roster.generation == 2
    assert roster.keys["validator"] == key_of(cluster, "sums-validator-key-2")
    [change] = roster.changes
    assert change.signer == change.document.old == old.document.keys["validator"]  # the old key agreed
    assert config_of(cluster).roster == new
    after = templates(cluster)
    assert {name for name in before if before[name] != after[name]} == {"sums-validator", "sums-orchestrator"}
    assert "sums-validator-key-2" in str(after["sums-validator"])
    join = cluster.get("ConfigMap", "sums-join")
    assert join is not None
    assert NodeConfig.from_json(join["data"]["node.json"]).roster == new
    assert shown(cluster)["validator"]["generation"] == 2
    assert shown(cluster)["validator"]["since"].startswith("2026-11-21T")


@pytest.mark.parametrize("role", ROLES)
def test_each_role_gets_a_secret_of_its_own_for_a_new_key(cluster: MemoryCluster, role: str) -> None:
    running(cluster)
    put(cluster, keys={role: {"generation": 2, "leaked": True}})
    cluster.settle()
    cluster.pods_end()  # the trainer's Job is replaced
    cluster.settle()
    [change] = roster_of(cluster).document.changes
    assert change.document.leaked
    assert change.signer == change.document.new == key_of(cluster, f"sums-{role}-key-2")
    mounted = [name for name, template in templates(cluster).items() if f"sums-{role}-key-2" in str(template)]
    assert mounted, f"no workload mounts the new key of {role}"


def test_the_run_secret_survives_and_the_admin_token_only_if_nothing_leaked(cluster: MemoryCluster) -> None:
    running(cluster)

    def entry(secret: str, name: str) -> str:
        found = cluster.get("Secret", secret)
        assert found is not None
        return str(found["data"][name])

    put(cluster, keys={"orchestrator": {"generation": 2}})
    cluster.settle()
    for name in ("run_secret", "admin_token"):
        assert entry("sums-orchestrator-key-2", name) == entry("sums-orchestrator-key", name)
    put(cluster, keys={"orchestrator": {"generation": 3, "leaked": True}})
    cluster.settle()
    assert entry("sums-orchestrator-key-3", "run_secret") == entry("sums-orchestrator-key", "run_secret")
    assert entry("sums-orchestrator-key-3", "admin_token") != entry("sums-orchestrator-key", "admin_token")


def test_a_smaller_generation_changes_nothing(cluster: MemoryCluster) -> None:
    running(cluster)
    put(cluster, keys={"trainer": {"generation": 2}})
    cluster.settle()
    before = roster_of(cluster)
    for keys in ({"trainer": {"generation": 1}}, {"trainer": {"generation": 2, "leaked": True}}, None):
        put(cluster, keys=keys)
        cluster.settle()
        assert roster_of(cluster) == before


def test_secrets_of_replaced_keys_go_when_no_pod_needs_them(cluster: MemoryCluster) -> None:
    running(cluster)
    put(cluster, keys={"relay": {"generation": 2}, "run": {"generation": 2}})
    cluster.settle()
    assert {"sums-relay-key", "sums-run-key"} <= set(cluster.names("Secret"))
    cluster.time = cluster.time.fromtimestamp(cluster.time.timestamp() + OVERLAP_SECONDS + 1, cluster.time.tzinfo)
    cluster.settle()
    cluster.pods_end()
    assert not {"sums-relay-key", "sums-run-key"} & set(cluster.names("Secret"))
    cluster.settle()
    assert roster_of(cluster).document.generation == 3


def test_a_leaked_run_key_gives_way_to_the_one_that_was_fixed(cluster: MemoryCluster) -> None:
    running(cluster)
    first, fixed = roster_of(cluster), key_of(cluster, "sums-run-key-2", "run.pem")
    put(cluster, keys={"run": {"generation": 2, "leaked": True}})
    cluster.settle()
    assert roster_of(cluster).signer == fixed
    assert config_of(cluster).run_key == first.signer  # the run is who it was
    assert verified_roster(roster_of(cluster), first.signer).run_keys(fixed) == [first.signer, fixed]
    assert shown(cluster)["run"]["fingerprint"] == fixed[:16]


def test_the_run_key_that_was_fixed_may_be_kept_elsewhere(cluster: MemoryCluster) -> None:
    running(cluster)
    kept = cluster.get("Secret", "sums-run-key-2")
    assert kept is not None
    cluster.objects.remove("Secret", "sums-run-key-2")
    cluster.settle()
    assert "sums-run-key-2" not in cluster.names("Secret")
    assert shown(cluster)["run"]["secretsAway"] == ["sums-run-key-2"]
    put(cluster, keys={"run": {"generation": 2}})
    with pytest.raises(ClusterError, match=r"Secret sums-run-key-2 .* put it back"):
        reconcile(cluster, "TrainingRun", "sums")
    cluster.objects.apply(kept)
    cluster.settle()
    assert roster_of(cluster).document.generation == 2
    assert "secretsAway" not in shown(cluster)["run"]
    cluster.objects.remove("Secret", "sums-run-key-2")
    cluster.objects.remove("Secret", "sums-run-key-3")
    cluster.settle()
    assert shown(cluster)["run"]["secretsAway"] == ["sums-run-key-2", "sums-run-key-3"]


def test_a_lost_key_is_never_replaced_in_silence(cluster: MemoryCluster) -> None:
    running(cluster)
    before = roster_of(cluster)
    cluster.objects.remove("Secret", "sums-trainer-key")
    with pytest.raises(ClusterError, match=r"sums-trainer-key .* is gone: .* spec.keys.trainer: \{generation: 2"):
        reconcile(cluster, "TrainingRun", "sums")
    put(cluster, keys={"trainer": {"generation": 2, "leaked": True}})
    cluster.settle()
    assert verified_roster(roster_of(cluster), before.signer).keys["trainer"] == key_of(cluster, "sums-trainer-key-2")


def test_a_lost_roster_is_found_in_the_configuration(cluster: MemoryCluster) -> None:
    running(cluster)
    put(cluster, keys={"trainer": {"generation": 2}})
    cluster.settle()
    before = roster_of(cluster)
    cluster.objects.remove("Secret", "sums-roster")
    cluster.settle()
    assert roster_of(cluster) == before


@pytest.mark.parametrize("status_too", [False, True])
def test_a_run_that_has_begun_gets_no_new_identity(cluster: MemoryCluster, status_too: bool) -> None:
    running(cluster)
    gone = [
        ("Secret", "sums-roster"),
        ("Secret", "sums-run-key"),
        ("ConfigMap", "sums-config"),
        ("ConfigMap", "sums-join"),
    ]
    kept = [cluster.get(kind, name) for kind, name in gone]
    first, pods = status(cluster)["runPublicKey"], templates(cluster)
    for kind, name in gone:
        cluster.objects.remove(kind, name)
    if status_too:
        cluster.objects.set_status("TrainingRun", "sums", {})
    cluster.writes.clear()
    with pytest.raises(
        ClusterError, match=r"sums-roster is gone, and with it sums-run-key, of a run that has begun: restore"
    ):
        reconcile(cluster, "TrainingRun", "sums")
    assert (cluster.writes, templates(cluster)) == ([], pods)
    assert said(cluster, "Ready")["reason"] == "IdentityLost"
    for each in kept[:2]:
        cluster.objects.apply(each or {})
    cluster.settle()
    assert (status(cluster)["runPublicKey"], templates(cluster)) == (first, pods)


@pytest.mark.parametrize("later", [False, True])
def test_another_runs_roster_stops_the_run_and_not_its_pods(cluster: MemoryCluster, later: bool) -> None:
    running(cluster)
    if later:  # the configuration is of a later release, and the status was lost
        for name, entry in (("sums-config", "run.json"), ("sums-join", "node.json")):
            found = cluster.get("ConfigMap", name)
            assert found is not None
            found["data"][entry] = found["data"][entry].replace("{", '{"of_a_later_release":1,', 1)
            cluster.objects.apply(found)
    own, pods, first = cluster.get("Secret", "sums-roster"), templates(cluster), status(cluster)["runPublicKey"]
    assert own is not None
    other = sign(roster_of(cluster).document, PrivateKey.generate())
    data = {"roster.json": base64.b64encode(other.to_json()).decode()}
    cluster.objects.apply({**own, "data": data})
    if later:
        cluster.objects.set_status("TrainingRun", "sums", {})
    with pytest.raises(ClusterError, match=r"have run key .*, but the run began with .*: restore both"):
        reconcile(cluster, "TrainingRun", "sums")
    assert templates(cluster) == pods
    cluster.objects.apply(own)
    cluster.objects.set_status("TrainingRun", "sums", {**status(cluster), "runPublicKey": "ff" * 32})
    cluster.settle()
    assert status(cluster)["runPublicKey"] == first, "a status that was written over stops nothing"


@pytest.mark.parametrize("before", [True, False])
def test_a_stop_at_any_step_of_a_change_leads_to_the_same_end(tmp_path: Any, before: bool) -> None:
    cluster = FragileCluster(tmp_path)
    cluster.before = before
    wanted = {"orchestrator": {"generation": 2}, "trainer": {"generation": 2, "leaked": True}, "run": {"generation": 2}}
    put(cluster)
    prepared(cluster)
    first = roster_of(cluster)
    put(cluster, keys=wanted)
    seen = set()
    for steps in range(40):
        cluster.left = steps - len(seen)  # a little further at each try
        try:
            reconcile(cluster, "TrainingRun", "sums")
        except Stopped:
            roster = verified_roster(roster_of(cluster), first.signer)  # one piece at any time: none or all three
            assert roster.generation in (1, 4)
            seen.add(roster.generation)
            continue
        break
    cluster.left = None
    cluster.settle()
    end = verified_roster(roster_of(cluster), first.signer)
    assert [change.document.role for change in end.changes] == ["run", "orchestrator", "trainer"]
    assert seen == {1, 4}
    made = {name for name in cluster.names("Secret") if name.endswith(("-2", "-3"))}
    assert made == {"sums-orchestrator-key-2", "sums-trainer-key-2", "sums-run-key-2", "sums-run-key-3"}
    assert said(cluster, "Progressing")["reason"] != "ReconcileFailed"
