"""Backup and restore of a run, as docs/operator.md has it: keys and spec by kubectl, a copy of the store, another namespace; the ledger goes on."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_story import Story
from control_plane import ControlPlane
from hollow_node import HollowNode
from kube_client import Kube, Object, make_namespace
from minio import Minio as MinioClient
from minio.commonconfig import CopySource
from orchestrators import Orchestrators

from ledger_samples import fact
from samples import NODE
from servers import ROOT, STARTED_WITH, Minio
from shoal.contracts.run import NodeConfig
from shoal.contracts.storage import S3Storage
from shoal.crypto.keys import PrivateKey
from shoal.ledger.checkpoints import Checkpoints
from shoal.ledger.writer import LedgerWriter
from shoal.storage.store import open_s3

pytestmark = pytest.mark.usefixtures("operator")
COPY = "restored"


def saved(control_plane: ControlPlane, namespace: str) -> str:
    """What the page's two calls of kubectl print."""
    run = control_plane.kubectl("-n", namespace, "get", "trainingrun", "sums", "-o", "json")
    return run + control_plane.kubectl("-n", namespace, "get", "secrets", "-l", "shoal.dev/run=sums", "-o", "json")


def backup(text: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "shoal_operator.backup"],
        input=text, capture_output=True, text=True, check=False, env=STARTED_WITH, cwd=ROOT, timeout=60,
    )  # fmt: skip


def credentials(kube: Kube, namespace: str, server: Minio) -> None:
    data = {"accessKey": server.access_key, "secretKey": server.secret_key}
    kube.create({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3", "namespace": namespace}, "stringData": data,
    })  # fmt: skip


def go_on(story: Story, server: Minio, bucket: str, facts: list[Object]) -> int:
    """Write into the ledger as the run's orchestrator would, with the key in its Secret; returns the number of entries."""
    spec = S3Storage(endpoint=server.endpoint, bucket=bucket, credentials_secret="s3")
    store = open_s3(spec, "shoal/sums", server.access_key, server.secret_key, deadline_seconds=20)
    secret = story.get("Secret", "sums-orchestrator-key")
    key = PrivateKey.from_pem(base64.b64decode(secret["data"]["role.pem"]))
    writer = LedgerWriter(store, "sums", key)
    writer.catch_up()
    for each in facts:
        assert writer.append(fact(each.pop("kind"), **each)) is not None
    joined = NodeConfig.from_json(story.get("ConfigMap", "sums-join")["data"]["node.json"])
    Checkpoints(writer, joined.roster).write_due(0.0, complete=True)
    return writer.view.next_number


def test_a_run_is_restored_in_another_namespace_with_its_keys_and_its_ledger(
    story: Story,
    kube: Kube,
    node: HollowNode,
    orchestrators: Orchestrators,
    control_plane: ControlPlane,
    minio_server: Minio,
    tmp_path: Path,
) -> None:
    credentials(kube, story.namespace, minio_server)
    s3 = {"endpoint": minio_server.endpoint, "bucket": minio_server.bucket, "credentialsSecret": "s3"}
    before = story.running(storage={"s3": s3})
    assert go_on(story, minio_server, minio_server.bucket, [
        {"kind": "node-joined", "node": NODE, "detail": "0" * 32}, {"kind": "node-dead", "node": NODE},
    ]) == 2  # fmt: skip
    story.edit(suspend=True)
    story.wait_condition("TrainingRun", "sums", "Suspended", "True")
    made = backup(saved(control_plane, story.namespace))
    assert made.returncode == 0, made.stderr
    assert made.stderr == ""
    keys = {
        each["metadata"]["name"]: each["data"]
        for each in kube.list("Secret", story.namespace, "shoal.dev/run=sums")
        if not each["metadata"]["name"].endswith("-release")  # what was made there, and is made anew here
    }
    kube.delete("TrainingRun", "sums", story.namespace)
    story.wait_gone("TrainingRun", "sums")

    client = MinioClient(
        f"{minio_server.address}:{minio_server.port}",
        minio_server.access_key, minio_server.secret_key, secure=False, region="us-east-1",
    )  # fmt: skip
    client.make_bucket(COPY)
    for each in client.list_objects(minio_server.bucket, "shoal/sums/", recursive=True):
        client.copy_object(COPY, str(each.object_name), CopySource(minio_server.bucket, str(each.object_name)))
    other = Story(kube, make_namespace(kube), node, orchestrators)
    other.progress()
    credentials(kube, other.namespace, minio_server)
    file = tmp_path / "sums.json"
    file.write_text(made.stdout.replace(f'"bucket": "{minio_server.bucket}"', f'"bucket": "{COPY}"'))
    control_plane.kubectl("-n", other.namespace, "create", "-f", str(file))
    other.wait_condition("TrainingRun", "sums", "Suspended", "True")
    assert kube.get("Job", "sums-prepare", other.namespace) is None, "something began before the store was there"
    other.edit(suspend=False)
    other.wait_condition("TrainingRun", "sums", "Ready", "True")

    after = other.get("TrainingRun", "sums")
    assert after["status"]["runPublicKey"] == before["status"]["runPublicKey"]
    for name, data in keys.items():
        found = other.get("Secret", name)
        assert found["data"] == data, name
        assert found["metadata"]["ownerReferences"][0]["uid"] == after["metadata"]["uid"], name
    assert go_on(other, minio_server, COPY, [{"kind": "node-banned", "node": NODE, "detail": "a test"}]) == 3
    join = tmp_path / "node.json"
    join.write_text(other.get("ConfigMap", "sums-join")["data"]["node.json"])
    verified = subprocess.run(
        [
            sys.executable, "-m", "shoal.cli.main", "ledger", "verify", f"s3://{COPY}/shoal/sums",
            "--join", str(join), "--endpoint", minio_server.endpoint,
        ],
        env=STARTED_WITH | {"AWS_ACCESS_KEY_ID": minio_server.access_key, "AWS_SECRET_ACCESS_KEY": minio_server.secret_key},
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=120,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "3 entries" in verified.stdout

    again = control_plane.kubectl("-n", other.namespace, "create", "-f", str(file), check=False)
    assert "already exists" in again, "a restore must never write over a run that lives"


def test_a_lost_secret_is_put_back_from_a_backup(story: Story, kube: Kube, control_plane: ControlPlane) -> None:
    first = story.running()["status"]["runPublicKey"]
    made = json.loads(backup(saved(control_plane, story.namespace)).stdout)
    pods = {pod["metadata"]["uid"] for pod in kube.list("Pod", story.namespace)}
    kube.delete("Secret", "sums-trainer-key", story.namespace)
    story.edit(validator={"replicas": 2})
    story.wait_condition("TrainingRun", "sums", "Ready", "False", "IdentityLost")
    lost = next(each for each in made["items"] if each["metadata"]["name"] == "sums-trainer-key")
    kube.create({**lost, "metadata": {**lost["metadata"], "namespace": story.namespace}})
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    assert story.get("TrainingRun", "sums")["status"]["runPublicKey"] == first
    assert pods <= {pod["metadata"]["uid"] for pod in kube.list("Pod", story.namespace)}, "a pod was replaced"
