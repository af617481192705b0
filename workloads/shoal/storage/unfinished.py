"""Removes what a killed writer leaves of a large upload: up to 65 GB that no listing of objects shows and that somebody pays for.

In: a run's `storage`, and a moment. Out: uploads below the run's prefix that began before it are aborted. MinIO answers for no prefix but an exact
key, so a bucket is listed from the run's prefix on, to the first name behind it; others' uploads are left alone. A folder's parts lie beside their
key, as `KEY#1`, and count by their last byte. Azure and Google are not asked: Azure drops such parts after a week, Google by a rule of the bucket.
Called by the orchestrator's background work, which waits for it: a look takes `LOOK_SECONDS` at most, and a request more. The next look goes on.
"""

import stat
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.datatypes import Upload
from minio.error import S3Error

from shoal.contracts import keys
from shoal.contracts.run import RunConfig, home
from shoal.contracts.storage import S3Storage
from shoal.storage.identity import identity_of
from shoal.telemetry import get_logger

REQUEST_SECONDS = 15.0
LOOK_SECONDS = 15.0
REFUSED_SECONDS = 3600.0
"""After a refusal, until the store is asked again: somebody may have given the right meanwhile."""
FINAL_CODES = ("AccessDenied", "NotImplemented", "MethodNotAllowed")
"""Answers that another try does not change soon: the keys may not list or abort, or the store cannot."""
LARGE = (
    "models/", keys.VERSIONS, "trainer/", keys.ISLANDS, keys.STAGING, keys.SFT, "datasets/", "tasks/", "packages/",
)  # fmt: skip
"""Where a folder store has large objects. Walking all of a long run's small ones would take minutes."""


class UnfinishedUploads:
    """The unfinished uploads of one run. One thread uses it."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._refused_until = 0.0
        self._said = False

    def abort(self, before_unix: float) -> int:
        """Abort those that began before this moment (seconds since 1970); how many. 0 where that is left to the store, which is said once.

        Raises what the store raises when it is away.
        """
        storage = self._config.storage
        prefix = f"{storage.prefix}/{self._config.run}/"
        count = 0
        if storage.is_folder:
            count = _in_folder(home() / "store" / prefix, before_unix)
        elif storage.gcs is not None:
            self._leave("Google's store is not asked")
        elif storage.s3 is not None and time.monotonic() >= self._refused_until:
            try:
                count = _in_bucket(storage.s3, prefix, before_unix)
            except S3Error as error:
                if error.code not in FINAL_CODES:
                    raise
                self._refused_until = time.monotonic() + REFUSED_SECONDS
                self._leave(f"the store refuses to list or abort them ({error.code})")
        if count:
            get_logger().info("unfinished uploads aborted", uploads=count)
        return count

    def _leave(self, reason: str) -> None:
        if not self._said:
            self._said = True
            get_logger().warning("unfinished uploads are left to a lifecycle rule of the bucket", reason=reason)


def _in_folder(run: Path, before_unix: float) -> int:
    """Obstore names an object so until it is whole. No key has a `#`."""
    count = 0
    for path in (path for each in LARGE for path in (run / each).rglob("*#*")):
        try:
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_mtime < before_unix:
                path.unlink()
                count += 1
        except FileNotFoundError:  # it is whole by now
            continue
    return count


def _in_bucket(spec: S3Storage, prefix: str, before_unix: float) -> int:
    endpoint, now = urlsplit(spec.endpoint), identity_of(spec, home()).keys()
    client = Minio(
        endpoint.netloc,
        access_key=now.access_key,
        secret_key=now.secret_key,
        session_token=now.session_token,
        secure=endpoint.scheme == "https",
        region=spec.region,
        http_client=urllib3.PoolManager(timeout=urllib3.Timeout(total=REQUEST_SECONDS), retries=False),
    )
    ends, count, refusal = time.monotonic() + LOOK_SECONDS, 0, None
    for upload in _uploads(client, spec.bucket, prefix):
        if time.monotonic() > ends:
            break
        name, number, began = upload.object_name, upload.upload_id, upload.initiated_time
        if number and name.startswith(prefix) and began is not None and began.timestamp() < before_unix:
            try:
                client._abort_multipart_upload(spec.bucket, name, number)
                count += 1
            except S3Error as error:  # of one upload, behind which others may wait
                if error.code != "NoSuchUpload":  # MinIO goes on listing for a while what it has dropped
                    refusal = error
    if refusal is not None and not count:
        raise refusal
    return count


def _uploads(client: Minio, bucket: str, prefix: str) -> Iterator[Upload]:
    """Those from a prefix on, page by page until one ends behind it; of one key with a thousand of them, those on one page. Each page is read before
    any of its uploads is aborted."""
    after = prefix
    while True:
        page = client._list_multipart_uploads(bucket, key_marker=after)
        uploads = list(page.uploads)
        yield from uploads
        last = page.next_key_marker
        if not page.is_truncated or last is None or last <= after or not last.startswith(prefix):
            return
        after = last
