"""The same hand-in over an S3-compatible store: the worker's side posts a presigned form, the orchestrator promotes what arrived."""

from pathlib import Path

import pytest

from protocol_stack import NEEDED, prepare, sha, verdict_on
from run_states import Orchestrator
from servers import Minio, Redis
from shoal.agent.hand_in import UploadFailedError, post_form
from shoal.contracts import keys
from shoal.contracts.protocol import UploadRequest
from shoal.contracts.steps import StepBatch
from shoal.contracts.storage import S3Storage, StorageSpec
from shoal.orchestrator.work import uploads
from shoal.storage import open_store


def test_a_file_goes_through_minio_from_grant_to_batch(
    tmp_path: Path, redis_server: Redis, minio_server: Minio, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / "home" / "secrets" / "store"
    secrets.mkdir(parents=True)
    (secrets / "accessKey").write_text(minio_server.access_key)
    (secrets / "secretKey").write_text(minio_server.secret_key)
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    s3 = S3Storage(endpoint=minio_server.endpoint, bucket=minio_server.bucket, credentials_secret="store")
    run = Orchestrator(tmp_path, redis_server.url, storage=StorageSpec(prefix="protocol", s3=s3))
    run.store = open_store(run.config, deadline_seconds=20)
    prepare(run.store)
    run.restarted()
    node = run.join()
    run.announce(0)
    for number in range(2):
        lease = run.lease(node)
        data = f"rollouts {number}".encode()
        (tmp_path / "file").write_bytes(data)
        request = UploadRequest(node=node, lease=lease.lease, size=len(data), sha256=sha(data))
        grant = uploads.grant_upload(run.state, request)
        with (tmp_path / "file").open("rb") as file:
            post_form(grant, file)
        assert run.confirm(lease, data).status == "queued"
        (tmp_path / "file").write_bytes(data + b" and more than was granted")
        with (tmp_path / "file").open("rb") as file, pytest.raises(UploadFailedError, match="the store answered 400"):
            post_form(grant, file)
        run.judge(verdict_on(run.claimed()))
    assert StepBatch.from_json(run.store.get(keys.step_batch(0))).groups == NEEDED
    assert run.store.list(keys.STAGING) == []
    assert len(run.store.list(keys.UPLOADS)) == 2
