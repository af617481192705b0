"""What a killed writer leaves of a large upload goes after two days, and what somebody is writing stays: MinIO, versitygw and a folder."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from minio import Minio as MinioClient
from minio.error import S3Error
from places import READER, S3, Folder, Google, Place
from structlog.testing import capture_logs
from urllib3 import BaseHTTPResponse

from oidc import role_arn
from samples import RUN
from shoal.contracts import keys
from shoal.storage import unfinished as module
from shoal.storage.identity import TOKEN_FILE
from shoal.storage.unfinished import UnfinishedUploads

PART = 5 << 20
PARTS = 4
WRITER = f"""
import sys
from pathlib import Path
from shoal.contracts.run import RunConfig
from shoal.storage import open_store, store

def parts():
    for number in range({PARTS}):
        if number == {PARTS} - 1:
            print("in the middle", flush=True)
            sys.stdin.readline()
        yield bytes([number]) * store.CHUNK_BYTES

store.CHUNK_BYTES, store.UPLOADS = {PART}, 1
config = RunConfig.from_json(Path(sys.argv[1]).read_bytes())
open_store(config).put_chunks(sys.argv[2], parts, {PARTS} * store.CHUNK_BYTES)
"""
"""Uploads an object whose last part waits for a line."""
Start = Callable[[Place, int], subprocess.Popen[str]]


def state(version: int) -> str:
    return keys.trainer_state(version) + "rank-00000.tensors"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a writer of a state's part, and waits until it is in the middle."""
    running: list[subprocess.Popen[str]] = []

    def started(place: Place, version: int) -> subprocess.Popen[str]:
        config = tmp_path / "run.json"
        config.write_bytes(place.config().to_json())
        command = [sys.executable, "-c", WRITER, str(config), state(version)]
        running.append(subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert running[-1].stdout is not None
        assert running[-1].stdout.readline() == "in the middle\n"
        return running[-1]

    yield started
    for process in running:
        process.kill()
        process.communicate()


def unfinished(place: S3 | Folder) -> list[str]:
    """What is not finished in this run, by its key; in a folder by its file."""
    if isinstance(place, Folder):
        return sorted(path.relative_to(place.root / "shoal" / RUN).as_posix() for path in place.root.rglob("*#*"))
    server = place.server
    where = f"{server.address}:{server.port}"
    client = MinioClient(where, server.access_key, server.secret_key, secure=False, region="us-east-1")
    found, prefix = client._list_multipart_uploads(server.bucket).uploads, f"{place.prefix}/{RUN}/"
    return sorted(each.object_name.removeprefix(prefix) for each in found if each.object_name.startswith(prefix))


def a_later_second() -> float:
    """Seconds since 1970, between what was and what will be: versitygw dates uploads by whole seconds."""
    time.sleep(1.1)
    border = time.time()
    time.sleep(1.1)
    return border


def killed_and_alive(place: S3 | Folder, start: Start, names: list[str]) -> None:
    """A writer is killed, another one lives; `names` are what they write."""
    start(place, 1).kill()
    border = a_later_second()
    alive = start(place, 2)
    assert unfinished(place) == names
    ours = UnfinishedUploads(place.config())
    assert ours.abort(border - 60.0) == 0, "none is so old"
    assert ours.abort(border) == 1
    assert unfinished(place) == names[1:]
    assert alive.communicate("go on\n")[0] == ""
    assert alive.returncode == 0
    store = place.open()
    assert not store.exists(state(1))
    assert store.size(state(2)) == PARTS * PART
    assert ours.abort(time.time() + 60.0) == 0
    assert unfinished(place) == []


def test_what_a_killed_writer_left_in_a_bucket_goes_and_a_young_upload_is_finished(s3: S3, start: Start) -> None:
    killed_and_alive(s3, start, [state(1), state(2)])


def test_what_a_killed_writer_left_in_a_folder_goes_and_a_young_upload_is_finished(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    killed_and_alive(Folder(tmp_path), start, [f"{state(1)}#1", f"{state(2)}#1"])


def test_uploads_of_other_runs_in_the_same_bucket_stay(s3: S3, start: Start) -> None:
    start(s3, 1).kill()
    config = s3.config()
    for other in (config.model_copy(update={"run": RUN + "-2"}), config.model_copy(update={"run": RUN[:-1]})):
        assert UnfinishedUploads(other).abort(time.time() + 60.0) == 0
    assert UnfinishedUploads(config).abort(time.time() + 60.0) == 1


def test_a_large_bucket_is_read_page_by_page_as_far_as_the_run(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    server, bucket, asked = s3.server, s3.prefix, []  # a bucket of its own: pages are counted
    client = MinioClient(
        f"{server.address}:{server.port}", server.access_key, server.secret_key, secure=False, region="us-east-1"
    )
    client.make_bucket(bucket)
    s3.spec = s3.spec.model_copy(update={"bucket": bucket})
    own, others = [f"{s3.prefix}/{RUN}/models/{number}" for number in range(5)], ["0", *(f"~{n}" for n in range(3))]
    for key in (*own, *others):
        client._create_multipart_upload(bucket, key, {})
    listed = MinioClient._list_multipart_uploads

    def by_two(self: MinioClient, bucket: str, **how: Any) -> Any:
        asked.append(how["key_marker"])
        return listed(self, bucket, max_uploads=2, **how)

    with monkeypatch.context() as paged:
        paged.setattr(MinioClient, "_list_multipart_uploads", by_two)
        assert UnfinishedUploads(s3.config()).abort(time.time() + 60.0) == len(own)
    assert len(asked) <= 3, "what is behind the run is not read; MinIO has one page"
    assert sorted(upload.object_name for upload in client._list_multipart_uploads(bucket).uploads) == others


def test_a_look_ends_in_time_and_the_next_one_goes_on(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    server = s3.server
    client = MinioClient(
        f"{server.address}:{server.port}", server.access_key, server.secret_key, secure=False, region="us-east-1"
    )
    for number in range(2):
        client._create_multipart_upload(server.bucket, f"{s3.prefix}/{RUN}/models/{number}", {})
    ours = UnfinishedUploads(s3.config())
    with monkeypatch.context() as short:
        short.setattr(module, "LOOK_SECONDS", 0.0)
        assert ours.abort(time.time() + 60.0) == 0
    assert ours.abort(time.time() + 60.0) == 2


def test_a_folder_in_a_folder_store_is_no_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    place = Folder(tmp_path)
    run = place.root / "shoal" / RUN
    (run / "models" / "a#1").mkdir(parents=True)
    left = run / "models" / "b#1"
    left.write_bytes(b"part")
    assert UnfinishedUploads(place.config()).abort(time.time() + 60.0) == 1
    assert not left.exists()


@pytest.mark.parametrize("s3", ["minio-identity"], indirect=True)
def test_keys_that_may_not_list_uploads_are_harmless_and_said_once(s3: S3, request: pytest.FixtureRequest) -> None:
    trusting = request.getfixturevalue("trusting")
    trusting.issuer.write(s3.home / "secrets" / "store" / TOKEN_FILE, audience=READER)
    reader = trusting.identity(role_arn=role_arn(READER), audience=READER)
    s3.spec = s3.spec.model_copy(update={"workload_identity": reader})
    left_to_the_bucket(s3, "the store refuses to list or abort them (AccessDenied)")


def test_a_store_that_is_not_asked_is_said_once(google: Google) -> None:
    left_to_the_bucket(google, "Google's store is not asked")


def test_keys_that_get_the_right_are_asked_again(s3: S3, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start(s3, 1).kill()
    ours = UnfinishedUploads(s3.config())
    with monkeypatch.context() as refusing:
        refusing.setattr(MinioClient, "_list_multipart_uploads", refuse)
        assert ours.abort(time.time() + 60.0) == 0
    assert ours.abort(time.time() + 60.0) == 0, "not so soon"
    monkeypatch.setattr(ours, "_refused_until", ours._refused_until - module.REFUSED_SECONDS)
    assert ours.abort(time.time() + 60.0) == 1


def refuse(*_: object, **__: object) -> None:
    raise S3Error(BaseHTTPResponse, "AccessDenied", "no", "", "", "")  # type: ignore[arg-type] # the answer is not read


def left_to_the_bucket(place: Place, reason: str) -> None:
    ours = UnfinishedUploads(place.config())
    with capture_logs() as said:
        assert [ours.abort(time.time()), ours.abort(time.time())] == [0, 0]
    assert [(each["log_level"], each["reason"]) for each in said] == [("warning", reason)]
