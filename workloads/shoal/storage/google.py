"""An access token for Google Cloud Storage, which Google's Security Token Service gives for a service account's token.

The exchange is that of OAuth 2.0 (RFC 8693), as Workload Identity Federation uses it (cloud.google.com/iam/docs/reference/sts/rest/v1).
The roles of the bucket name the service account itself, as a principal of the pool: no service account of Google's is between.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path

from shoal.contracts.storage import GcsStorage, GcsWorkload
from shoal.storage.bearer import BearerIdentity, TokenExchange
from shoal.storage.identity import TOKEN_FILE, read_token

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
TYPES = "urn:ietf:params:oauth:token-type"
LATE = ("is stale", "quota")
"""What Google says of a token that is too old, and of too many requests."""


def google_of(spec: GcsStorage, pod: Path) -> BearerIdentity:
    """Who this process asks the store as. All stores of a process share what one exchange gave. `pod` is the pod's folder (`SHOAL_HOME`)."""
    return google_identity(spec.workload_identity, pod / "secrets" / "store" / TOKEN_FILE)


@functools.cache
def google_identity(spec: GcsWorkload, token_file: Path, clock: Callable[[], float] = time.time) -> BearerIdentity:
    """Access tokens for the service account's token in a file, which is read for each exchange."""
    return BearerIdentity(spec.sts_endpoint, lambda: _exchange(spec, token_file), clock)


def _exchange(spec: GcsWorkload, token_file: Path) -> TokenExchange:
    """The question to the token service; raises IdentityRefused without a token."""
    token = read_token(token_file, "storage.gcs.workloadIdentity")
    asked = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "audience": spec.provider,
        "scope": SCOPE,
        "requested_token_type": f"{TYPES}:access_token",
        "subject_token_type": f"{TYPES}:jwt",
        "subject_token": token,
    }
    whom = f"service account {spec.service_account} at {spec.provider}"
    return TokenExchange(spec.sts_endpoint, spec.sts_endpoint, asked, token, whom, LATE)
