"""Upload grants: the right to post one file to exactly one staging key, of bounded size, for some minutes.

For S3 the grant is an S3 POST policy and the bytes never pass through us. For other stores the orchestrator serves `POST /v1/staging`: a signed URL
of Azure bounds no size, and a stranger could fill the account; one of Google's needs a call to its cloud for each signature.
The grant is our own policy in the same form (fields to post before the file). It is authenticated by HMAC with a key derived from the run secret.
Made and checked by the orchestrator; a worker only passes it on.
"""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime
from urllib.parse import urlsplit

import rfc8785
from minio import Minio
from minio.datatypes import PostPolicy

from shoal.contracts.protocol import UploadGrant
from shoal.contracts.run import RunConfig, home
from shoal.storage.identity import IdentityRefused, TokenServiceAway, identity_of
from shoal.storage.store import StoreUnavailable

STAGING_PATH = "/v1/staging"
FIELDS = ("key", "policy", "signature")


class BadGrant(ValueError):
    """The form posted to `/v1/staging` carries no valid policy; the message says why (for the 403 answer)."""


def make_grant(
    config: RunConfig, key: str, *, max_bytes: int, expires_unix: float, run_secret: bytes, outside: bool = False
) -> UploadGrant:
    """A grant for `key` (relative to the run), at most `max_bytes` bytes, until `expires_unix`. `outside`: for a stranger's machine."""
    full = f"{config.storage.prefix}/{config.run}/{key}"
    if config.storage.s3 is not None:
        return _s3_grant(config, full, max_bytes, expires_unix)
    addresses = config.addresses
    orchestrator = (outside and addresses.public_orchestrator) or addresses.orchestrator
    policy = rfc8785.dumps({"key": key, "max_bytes": max_bytes, "expires_unix": int(expires_unix)})
    return UploadGrant(
        url=orchestrator.rstrip("/") + STAGING_PATH,
        fields={
            "key": key,
            "policy": base64.b64encode(policy).decode(),
            "signature": _mac(policy, run_secret),
        },
        expires_unix=expires_unix,
    )


def check_folder_grant(fields: dict[str, str], *, now_unix: float, run_secret: bytes) -> tuple[str, int]:
    """Key and greatest size (bytes) that a posted form may write; raises `BadGrant`."""
    missing = [name for name in FIELDS if name not in fields]
    if missing:
        raise BadGrant(f"form lacks {', '.join(missing)}: post the fields of the upload grant before the file")
    try:
        policy = base64.b64decode(fields["policy"], validate=True)
    except ValueError as error:
        raise BadGrant("policy is not base64") from error
    if not hmac.compare_digest(_mac(policy, run_secret).encode(), fields["signature"].encode(errors="replace")):
        raise BadGrant("policy is not signed by this orchestrator")
    granted = json.loads(policy)
    if granted["expires_unix"] < now_unix:
        raise BadGrant("grant has expired: ask for another one")
    if granted["key"] != fields["key"]:
        raise BadGrant("key is not the one that the policy allows")
    return granted["key"], int(granted["max_bytes"])


def _mac(policy: bytes, run_secret: bytes) -> str:
    key = hmac.new(run_secret, b"shoal/staging-grant/v1", hashlib.sha256).digest()
    return hmac.new(key, policy, hashlib.sha256).hexdigest()


def _s3_grant(config: RunConfig, full_key: str, max_bytes: int, expires_unix: float) -> UploadGrant:
    spec = config.storage.s3
    assert spec is not None
    endpoint = urlsplit(spec.public_endpoint or spec.endpoint)
    try:
        keys = identity_of(spec, home()).keys()
    except (IdentityRefused, TokenServiceAway) as error:
        raise StoreUnavailable(f"cannot grant an upload: {error}") from None
    if keys.expires_unix is not None:
        # The store refuses what was signed with keys that have ended: a grant that promised more would be a lie.
        expires_unix = min(expires_unix, keys.expires_unix)
    client = Minio(
        endpoint.netloc,
        access_key=keys.access_key,
        secret_key=keys.secret_key,
        session_token=keys.session_token,
        secure=endpoint.scheme == "https",
        region=spec.region,  # given, so that signing needs no request to the store
    )
    policy = PostPolicy(spec.bucket, datetime.fromtimestamp(expires_unix, tz=UTC))
    policy.add_equals_condition("key", full_key)
    policy.add_content_length_range_condition(1, max_bytes)
    fields = client.presigned_post_policy(policy)
    return UploadGrant(
        url=f"{endpoint.scheme}://{endpoint.netloc}/{spec.bucket}",
        fields={"key": full_key, **{name: str(value) for name, value in fields.items()}},
        expires_unix=expires_unix,
    )
