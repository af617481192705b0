"""A backup of a run is written only if it is enough to go on: bad input is one line, and no private key is in it."""

import base64
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import neighbour, put, running, status

from shoal.crypto.keys import PrivateKey
from shoal_operator import backup
from shoal_operator.engine.cluster import Object
from shoal_operator.reconcile import reconcile


def printed(cluster: MemoryCluster) -> list[Object]:
    """What kubectl prints of the run: one object, then a list."""
    run = cluster.get("TrainingRun", "sums")
    assert run is not None
    return [run, {"kind": "List", "items": cluster.list("Secret", {"shoal.dev/run": "sums"})}]


def text_of(found: list[Object]) -> str:
    return "\n".join(json.dumps(each) for each in found)


def secret(found: list[Object], name: str) -> Object:
    return next(each for each in found[1]["items"] if each["metadata"]["name"] == name)


def without(found: list[Object], *names: str) -> None:
    found[1]["items"] = [each for each in found[1]["items"] if each["metadata"]["name"] not in names]


def another_key() -> str:
    return base64.b64encode(PrivateKey.generate().to_pem()).decode()


def elsewhere(made: Any, tmp_path: Path) -> MemoryCluster:
    """Another cluster with what a backup holds."""
    folder = tmp_path / "other"
    folder.mkdir()
    other = MemoryCluster(folder)
    for each in made["items"]:
        other.objects.apply({**each, "metadata": {**each["metadata"], "namespace": "default"}})
    return other


def test_a_backup_holds_keys_first_and_then_the_run_suspended_and_bound_to_nothing(cluster: MemoryCluster) -> None:
    running(cluster, version=1)
    made, remarks = backup.backup(list(backup.documents(text_of(printed(cluster)))))
    assert remarks == []
    kinds = [each["kind"] for each in made["items"]]
    assert kinds == ["Secret"] * (len(kinds) - 1) + ["TrainingRun"]
    assert made["items"][-1]["spec"]["suspend"] is True
    assert "status" not in made["items"][-1]
    assert all({*each["metadata"]} <= {"name", "labels"} for each in made["items"][:-1])
    assert made["items"][-1]["metadata"]["annotations"] == {"shoal.dev/restored": "true"}
    assert {*made["items"][-1]["metadata"]} <= {"name", "labels", "annotations"}


def test_a_restored_run_waits_for_no_run_and_samples_no_filter_that_its_store_has(
    cluster: MemoryCluster, tmp_path: Any
) -> None:
    neighbour(cluster, "start", "Complete")
    neighbour(cluster, "judge", "Complete")
    filtered = {"environment": "arithmetic", "offlineFilter": {"samples": 6, "model": {"run": "judge"}}}
    put(cluster, model={"run": "start"}, tasks=filtered)
    reconcile(cluster, "TrainingRun", "sums")
    made, _ = backup.backup(list(backup.documents(text_of(printed(cluster)))))
    assert "annotations" not in made["items"][-1]["metadata"], "its store has nothing yet"
    prepared = {"type": "Prepared", "status": "True", "reason": "R", "message": ""}
    cluster.objects.set_status("TrainingRun", "sums", {**status(cluster), "conditions": [prepared]})
    made, _ = backup.backup(list(backup.documents(text_of(printed(cluster)))))
    other = elsewhere(made, tmp_path)
    found = other.get("TrainingRun", "sums")
    assert found is not None
    for suspended in (True, False):
        found["spec"]["suspend"] = suspended
        other.objects.apply(found)
        other.settle()
        assert other.names("TrainingRun") == ["sums"]
    prepare = other.get("Job", "sums-prepare")
    assert prepare is not None
    volumes = prepare["spec"]["template"]["spec"]["volumes"]
    claims = {each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each}
    assert claims == {"sums-store"}
    other.job_ends("sums-prepare", "Complete")
    other.settle()
    assert other.names("TrainingRun") == ["sums"]
    assert "sums-trainer-1" in other.names("Job")


def test_a_run_made_of_its_backup_has_the_keys_and_the_tickets_of_the_first(
    cluster: MemoryCluster, tmp_path: Any
) -> None:
    put(cluster, keys={"trainer": {"generation": 2}})
    running(cluster, version=1)
    made, _ = backup.backup(list(backup.documents(text_of(printed(cluster)))))
    other = elsewhere(made, tmp_path)
    other.settle()
    assert other.names("Job") == []
    found = other.get("TrainingRun", "sums")
    assert found is not None
    found["spec"]["suspend"] = False
    other.objects.apply(found)
    running(other, version=1)
    assert status(other)["runPublicKey"] == status(cluster)["runPublicKey"]
    assert status(other)["keys"] == status(cluster)["keys"]
    reconcile(other, "TrainingRun", "sums")
    for each in made["items"][:-1]:
        again = other.get("Secret", each["metadata"]["name"])
        assert again is not None
        assert again["data"] == each["data"]
        assert again["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]


@pytest.mark.parametrize("by_hand", [False, True])
def test_records_of_releases_stay_behind_or_go_to_whom_they_are_of(
    cluster: MemoryCluster, tmp_path: Any, by_hand: bool
) -> None:
    """A pool whose record belonged to its run could never be reconciled."""
    put(cluster, inferencePools=[{"name": "pool"}], relayServer={}, validator={})
    running(cluster, version=1)
    made, _ = backup.backup(list(backup.documents(text_of(printed(cluster)))))
    assert not [each for each in made["items"] if each["metadata"]["name"].endswith("-release")]
    if by_hand:
        for each in printed(cluster)[1]["items"]:
            kept = {key: each["metadata"][key] for key in ("name", "labels", "annotations") if key in each["metadata"]}
            if each["metadata"]["name"].endswith("-release"):
                made["items"].insert(0, {**each, "metadata": kept})
    made["items"][-1]["spec"]["suspend"] = False
    other = elsewhere(made, tmp_path)
    running(other, version=1)
    for owner in ("sums", "sums-pool", "sums-relay", "sums-validator"):
        record = other.get("Secret", f"{owner}-release")
        assert record is not None
        assert [each["name"] for each in record["metadata"]["ownerReferences"]] == [owner]


def test_run_keys_that_are_kept_elsewhere_are_named_and_may_be_absent(cluster: MemoryCluster) -> None:
    running(cluster)
    found = printed(cluster)
    without(found, "sums-run-key-2")
    _, remarks = backup.backup(list(backup.documents(text_of(found))))
    assert remarks == ["Secret sums-run-key-2 is not in it: keep it where it is, for without it no key can be replaced"]


def no_run(found: list[Object]) -> None:
    found[0]["kind"] = "Pod"


def two_runs(found: list[Object]) -> None:
    found[1]["items"].append(found[0])


def lost_roster(found: list[Object]) -> None:
    without(found, "sums-roster")


def lost_key(found: list[Object]) -> None:
    without(found, "sums-validator-key")


def other_key(found: list[Object]) -> None:
    secret(found, "sums-trainer-key")["data"]["role.pem"] = another_key()


def not_a_key(found: list[Object]) -> None:
    secret(found, "sums-trainer-key")["data"]["role.pem"] = base64.b64encode(b"-----BEGIN").decode()


def no_run_secret(found: list[Object]) -> None:
    del secret(found, "sums-orchestrator-key")["data"]["run_secret"]


def not_base64(found: list[Object]) -> None:
    secret(found, "sums-roster")["data"]["roster.json"] = "é"


def forged_roster(found: list[Object]) -> None:
    data = secret(found, "sums-roster")["data"]
    roster = json.loads(base64.b64decode(data["roster.json"]))
    roster["document"]["run"] = "other"
    data["roster.json"] = base64.b64encode(json.dumps(roster).encode()).decode()


def another_identity(found: list[Object]) -> None:
    found[0]["status"]["runPublicKey"] = "ab" * 32


def unlabelled(found: list[Object]) -> None:
    del secret(found, "sums-orchestrator-key")["metadata"]["labels"]


def later_release(found: list[Object]) -> None:
    found[0]["spec"]["fromTheFuture"] = 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (no_run, "the input holds 0 TrainingRuns: give exactly one"),
        (two_runs, "the input holds 2 TrainingRuns"),
        (lost_roster, "Secret sums-roster is missing: give all Secrets with the label shoal.dev/run"),
        (lost_key, "Secret sums-validator-key is missing"),
        (unlabelled, "Secret sums-orchestrator-key is missing"),
        (other_key, "Secret sums-trainer-key has another key than the run's roster"),
        (not_a_key, "Secret sums-trainer-key: role.pem is not a private key"),
        (no_run_secret, "Secret sums-orchestrator-key has no readable run_secret"),
        (not_base64, "Secret sums-roster has no readable roster.json"),
        (forged_roster, "Secret sums-roster: its roster is not sound"),
        (another_identity, "Secret sums-roster is of another run than sums"),
        (later_release, "TrainingRun sums: this release does not know spec.fromTheFuture"),
    ],
)
def test_what_is_not_a_run_with_its_keys_is_refused_in_one_line(
    cluster: MemoryCluster,
    change: Any,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    running(cluster, version=1)
    found = printed(cluster)
    change(found)
    monkeypatch.setattr("sys.stdin", io.StringIO(text_of(found)))
    assert backup.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err
    assert "BEGIN" not in err


@pytest.mark.parametrize("text", ["", "not JSON", "[1]", "{}", '{"items": 3}', '{"items": [{"kind": "Pod"}]}', "1"])
def test_text_that_is_no_answer_of_kubectl_is_refused(text: str) -> None:
    with pytest.raises(backup.NotARun):
        backup.backup(list(backup.documents(text)))


def test_nobody_else_may_read_the_file_that_a_backup_is_written_into(cluster: MemoryCluster, tmp_path: Any) -> None:
    running(cluster, version=1)
    kept = tmp_path / "sums.json"
    kept.touch()
    kept.chmod(0o644)
    with kept.open("w") as out:
        command = [sys.executable, "-m", "shoal_operator.backup"]
        subprocess.run(command, input=text_of(printed(cluster)), text=True, stdout=out, check=True)
    assert json.loads(kept.read_text())["kind"] == "List"
    assert kept.stat().st_mode & 0o777 == 0o600
