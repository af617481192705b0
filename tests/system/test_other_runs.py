"""Another run on another store, and stopping: what a person does with `shoal up` beside the run of the other tests."""

from pathlib import Path

import pytest
import yaml
from local_system import EXAMPLE, SMALL, LocalSystem, brought_model, write_manifest

from servers import Minio
from shoal.contracts import keys
from shoal.contracts.storage import S3Storage
from shoal.storage.store import open_s3
from shoal_operator.local.processes import ProcessTable, start_ticks

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

ONE_OF_EACH = {
    "inferencePools": [{"name": "pool", "replicas": 1, "weightsSize": "1Gi"}],
    "relayServer": {"replicas": 1, "cacheSize": "1Gi"},
}


def test_a_second_run_on_minio_beside_the_first_collides_with_nothing_and_resumes_after_a_stop(
    system: LocalSystem, minio_server: Minio, tmp_path: Path
) -> None:
    endpoint = f"http://{minio_server.address}:{minio_server.port}"
    spec = S3Storage(endpoint=endpoint, bucket=minio_server.bucket, credentials_secret="minio-credentials")
    storage = {"prefix": "shoal", "s3": spec.model_dump(by_alias=True, exclude_none=True)}
    changes = SMALL | ONE_OF_EACH | {"storage": storage, "model": brought_model()}
    manifest = write_manifest(EXAMPLE, tmp_path / "run.yaml", name="on-minio", **changes)
    secret = tmp_path / "secret.yaml"
    secret.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "minio-credentials"},
                "stringData": {"accessKey": minio_server.access_key, "secretKey": minio_server.secret_key},
            }
        )
    )
    store = open_s3(spec, "shoal/on-minio", minio_server.access_key, minio_server.secret_key)
    for info in [*system.store.list("models"), *system.store.list("tasks")]:
        store.put(info.key, system.store.get(info.key))
    text = system.store.get(keys.PREPARED).decode()
    store.put(keys.PREPARED, text.replace(f'"run":"{system.run}"', '"run":"on-minio"').encode())

    second = LocalSystem(manifest, tmp_path / "runs", (str(secret),), store)
    second.start()
    try:
        second.until("the second run trains a version over MinIO", lambda: second.latest_version() >= 1, 400)
        ours = {pod.address for pod in system.local.pods()}
        theirs = {pod.address for pod in second.local.pods()}
        assert not ours & theirs
        pids = [each.pid for pod in second.local.pods() for each in pod.containers if each.pid is not None]
        digests = {entry.version: entry.digest for entry in second.ledger() if entry.kind == "version-published"}
    finally:
        second.stop()
    assert [pid for pid in pids if start_ticks(pid) is not None] == []
    assert ProcessTable(second.folder / "processes").records() == []
    assert store.exists(keys.version_weights(1))
    assert store.list("uploads")

    again = LocalSystem(manifest, tmp_path / "runs", (str(secret),), store)
    # The first run has shown that it does not collide: suspended, it leaves its share of the CPU.
    system.edit(lambda spec: spec.update(suspend=True))
    again.start()
    try:
        newest = max(version for version in digests if version is not None)
        again.until("it resumes at its last version", lambda: again.latest_version() >= newest)
        again.advance(1)
        after = {entry.version: entry.digest for entry in again.ledger() if entry.kind == "version-published"}
        assert {version: after[version] for version in digests} == digests
    finally:
        again.stop()
        system.edit(lambda spec: spec.update(suspend=False))
    logs = "".join(path.read_text(errors="replace") for path in (again.folder / "logs").rglob("*.log"))
    assert minio_server.secret_key not in logs
