"""Makes the bucket of an object store: `python -m shoal.storage.bucket --endpoint http://minio:9000 --credentials /shoal/secrets/store rollouts`.

Run by the Helm chart after it has started the store that comes with it; for a store of your own, its own tools do this. Waits for the store until a
deadline, and is content when the bucket is there. Exit codes: 0 the bucket is there, 1 the store did not create it, 2 the command line is wrong.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.error import MinioException, S3Error

from shoal.retries import Backoff, retrying

DEADLINE_SECONDS = 240.0
"""A volume that must be bound and attached takes the first minutes."""
PAUSES = Backoff(1.0, 4.0)
REQUEST_SECONDS = 10.0
FINAL_CODES = (
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidBucketName",
    "BucketAlreadyExists",
    "BucketAlreadyOwnedByYou",
)
"""Answers that another try does not change. `BucketAlreadyExists`: it is somebody else's; `...OwnedByYou`: it is there."""


class NoBucket(RuntimeError):
    """The bucket could not be made; the message says what the store said."""


def make_bucket(endpoint: str, access_key: str, secret_key: str, bucket: str, deadline_seconds: float) -> bool:
    """Make `bucket` unless it is there; True when it was made. Raises NoBucket."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
        raise NoBucket(f"endpoint {endpoint!r}: allowed: http:// or https:// with a host, and no path")
    client = Minio(
        endpoint=parts.netloc,
        access_key=access_key,
        secret_key=secret_key,
        secure=parts.scheme == "https",
        # The store is inside the cluster: proxies of the environment do not know it, and tries are counted here.
        http_client=urllib3.PoolManager(timeout=REQUEST_SECONDS, retries=False),
    )
    patient = retrying(
        _may_pass,
        PAUSES,
        deadline_seconds=deadline_seconds,
        give_up=lambda error, _: NoBucket(
            f"{endpoint} did not create it within {deadline_seconds:.0f} s: {_short(error)}"
        ),
        say=lambda error, _: print(f"waiting for {endpoint}: {_short(error)}", flush=True),
    )
    try:
        patient(client.make_bucket, bucket_name=bucket)
    except (S3Error, ValueError, NoBucket) as error:
        if isinstance(error, S3Error) and error.code == "BucketAlreadyOwnedByYou":
            return False
        raise NoBucket(f"bucket {bucket}: {_short(error)}") from error
    return True


def _may_pass(error: BaseException) -> bool:
    """Whether another try may help."""
    if isinstance(error, S3Error):
        return error.code not in FINAL_CODES
    return isinstance(error, MinioException | urllib3.exceptions.HTTPError | OSError)


def _short(error: BaseException) -> str:
    return f"{error.code}: {error.message}" if isinstance(error, S3Error) else str(error)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m shoal.storage.bucket", description="Creates a bucket unless it exists."
    )
    parser.add_argument("bucket", help="name of the bucket")
    parser.add_argument("--endpoint", required=True, metavar="URL", help="URL of the store")
    parser.add_argument(
        "--credentials", required=True, type=Path, metavar="FOLDER", help="folder with files accessKey and secretKey"
    )
    parser.add_argument(
        "--deadline", type=float, default=DEADLINE_SECONDS, metavar="SECONDS", help="seconds to wait for the store"
    )
    given = parser.parse_args(arguments)
    try:
        access, secret = ((given.credentials / name).read_text().strip() for name in ("accessKey", "secretKey"))
        made = make_bucket(given.endpoint, access, secret, given.bucket, given.deadline)
    except OSError as error:
        sys.exit(f"--credentials {given.credentials}: {error.strerror}: {error.filename}")
    except NoBucket as error:
        sys.exit(str(error))
    print(f"bucket {given.bucket} {'is made' if made else 'was there'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
