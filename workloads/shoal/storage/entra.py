"""An access token for Azure Blob Storage, which Microsoft Entra ID gives for a service account's token.

The exchange is OAuth 2.0's client credentials grant with a JWT as the client's assertion (RFC 7523, section 2.2), as Azure's workload identity uses
it. Renewal, pauses and bounds are those of `Renewing`: one exchange in 40 minutes for each process that uses the store, whatever the run's size.
"""

import functools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import urllib3

from shoal.contracts.recipe import AzureStorage, AzureWorkload
from shoal.storage.identity import (
    TOKEN_FILE,
    IdentityRefused,
    Renewing,
    TokenServiceAway,
    plain_reason,
    post_form,
    read_token,
)

SCOPE = "https://storage.azure.com/.default"
ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
PASSING = ("temporarily_unavailable", "server_error")
"""Errors of RFC 6749 that another try may fix."""
LATE = ("AADSTS700024", "AADSTS50196")
"""Codes of Entra's for an assertion outside its time, and for too many requests: a kubelet renews the one, a pause ends the other."""
LONGEST_LIFE_SECONDS = 86_400.0
"""A longer life is taken for this: it is a service's mistake, and a token is renewed once a day at least."""


@dataclass(frozen=True)
class Bearer:
    """What requests to the store carry. Its text shows nothing of it."""

    token: str = field(repr=False)
    expires_unix: float


class EntraIdentity(Renewing[Bearer]):
    """Access tokens for the service account's token in a file. Safe to use from several threads."""

    def __init__(self, spec: AzureWorkload, token_file: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(spec.authority, lambda: _exchange(spec, token_file, clock), clock)


def entra_of(spec: AzureStorage, pod: Path) -> EntraIdentity:
    """Who this process asks the store as. All stores of a process share what one exchange gave. `pod` is the pod's folder (`SHOAL_HOME`)."""
    return _shared(spec.workload_identity, pod / "secrets" / "store" / TOKEN_FILE)


@functools.cache
def _shared(spec: AzureWorkload, token_file: Path) -> EntraIdentity:
    return EntraIdentity(spec, token_file)


def _exchange(spec: AzureWorkload, token_file: Path, clock: Callable[[], float]) -> Bearer:
    """One request to the token service; raises IdentityRefused and TokenServiceAway."""
    token = read_token(token_file, "storage.azure.workloadIdentity")
    asked = {
        "grant_type": "client_credentials",
        "client_id": spec.client_id,
        "scope": SCOPE,
        "client_assertion_type": ASSERTION,
        "client_assertion": token,
    }
    where = f"token service {spec.authority}"
    url = f"{spec.authority.rstrip('/')}/{spec.tenant_id}/oauth2/v2.0/token"
    began = clock()
    try:
        status, answer = post_form(url, urlencode(asked), "application/json")
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise TokenServiceAway(f"{where} does not answer: {plain_reason(str(error), token)}") from None
    found = _object(answer)
    if status == 200:
        given, life = found.get("access_token"), _seconds(found.get("expires_in"))
        if not isinstance(given, str) or not given or life is None:
            raise IdentityRefused(f"{where} answers without access_token and expires_in: it is no token service")
        if life <= 0:
            raise TokenServiceAway(f"{where} gives a token that has ended already")
        return Bearer(given, began + min(life, LONGEST_LIFE_SECONDS))
    code, reason = (str(found.get(name) or "") for name in ("error", "error_description"))
    said = plain_reason(": ".join(each for each in (code, reason) if each) or f"status {status}", token)
    if status >= 500 or status == 429 or code in PASSING or any(each in reason for each in LATE):
        raise TokenServiceAway(f"{where} cannot give a token now: {said}")
    raise IdentityRefused(f"{where} refuses client {spec.client_id} to service account {spec.service_account}: {said}")


def _object(answer: str) -> dict[str, object]:
    """The service's JSON, or nothing."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _seconds(value: object) -> float | None:
    """A number of seconds, also where it is written as text."""
    if not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if seconds == seconds else None  # not NaN
