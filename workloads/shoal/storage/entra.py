"""An access token for Azure Blob Storage, which Microsoft Entra ID gives for a service account's token.

The exchange is OAuth 2.0's client credentials grant with a JWT as the client's assertion (RFC 7523, section 2.2), as Azure's workload identity uses
it.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path

from shoal.contracts.storage import AzureStorage, AzureWorkload
from shoal.storage.bearer import BearerIdentity, TokenExchange
from shoal.storage.identity import TOKEN_FILE, read_token

SCOPE = "https://storage.azure.com/.default"
ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
LATE = ("AADSTS700024", "AADSTS50196")
"""Codes of Entra's for an assertion outside its time, and for too many requests."""


def entra_of(spec: AzureStorage, pod: Path) -> BearerIdentity:
    """Who this process asks the store as. All stores of a process share what one exchange gave. `pod` is the pod's folder (`SHOAL_HOME`)."""
    return entra_identity(spec.workload_identity, pod / "secrets" / "store" / TOKEN_FILE)


@functools.cache
def entra_identity(spec: AzureWorkload, token_file: Path, clock: Callable[[], float] = time.time) -> BearerIdentity:
    """Access tokens for the service account's token in a file, which is read for each exchange."""
    return BearerIdentity(spec.authority, lambda: _exchange(spec, token_file), clock)


def _exchange(spec: AzureWorkload, token_file: Path) -> TokenExchange:
    """The question to the token service; raises IdentityRefused without a token."""
    token = read_token(token_file, "storage.azure.workloadIdentity")
    asked = {
        "grant_type": "client_credentials",
        "client_id": spec.client_id,
        "scope": SCOPE,
        "client_assertion_type": ASSERTION,
        "client_assertion": token,
    }
    url = f"{spec.authority.rstrip('/')}/{spec.tenant_id}/oauth2/v2.0/token"
    whom = f"client {spec.client_id} to service account {spec.service_account}"
    return TokenExchange(spec.authority, url, asked, token, whom, LATE)
