"""An access token for a cloud's store, which OAuth 2.0's token endpoint of that cloud gives for a service account's token.

`storage/entra.py` and `storage/google.py` say what their clouds are asked. Renewal, pauses and bounds are those of `Renewing`: one exchange in 40
minutes for each process that uses the store, whatever the run's size.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

import urllib3

from shoal.storage.identity import IdentityRefused, Renewing, TokenServiceAway, plain_reason, post_form
from shoal.text import json_object

PASSING = ("temporarily_unavailable", "server_error")
"""Errors of RFC 6749 that another try may fix."""
LONGEST_LIFE_SECONDS = 86_400.0
"""A longer life is taken for this: it is a service's mistake, and a token is renewed once a day at least."""


@dataclass(frozen=True)
class Bearer:
    """What requests to the store carry. Its text shows nothing of it."""

    token: str = field(repr=False)
    expires_unix: float


@dataclass(frozen=True)
class TokenExchange:
    """One question to a token endpoint.

    Args:
        service: how messages call the service.
        url: its endpoint.
        asked: fields of the form, with the service account's token among them.
        token: that token, which no message shows.
        whom: what a refusal keeps from whom, for its message.
        late: texts in a refusal's description that another try may fix: a kubelet renews its token, a pause ends a throttling.
    """

    service: str
    url: str
    asked: Mapping[str, str] = field(repr=False)
    token: str = field(repr=False)
    whom: str
    late: tuple[str, ...]

    def ask(self, clock: Callable[[], float]) -> Bearer:
        """One request; raises IdentityRefused and TokenServiceAway."""
        where, began = f"token service {self.service}", clock()
        try:
            status, answer = post_form(self.url, urlencode(self.asked), "application/json")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise TokenServiceAway(f"{where} does not answer: {plain_reason(str(error), self.token)}") from None
        found = json_object(answer)
        if status == 200:
            given, life = found.get("access_token"), _seconds(found.get("expires_in"))
            if not isinstance(given, str) or not given or life is None:
                raise IdentityRefused(f"{where} answers without access_token and expires_in: it is no token service")
            if life <= 0:
                raise TokenServiceAway(f"{where} gives a token that has ended already")
            return Bearer(given, began + min(life, LONGEST_LIFE_SECONDS))
        code, reason = (str(found.get(name) or "") for name in ("error", "error_description"))
        said = plain_reason(": ".join(each for each in (code, reason) if each) or f"status {status}", self.token)
        if status >= 500 or status == 429 or code in PASSING or any(each in reason for each in self.late):
            raise TokenServiceAway(f"{where} cannot give a token now: {said}")
        raise IdentityRefused(f"{where} refuses {self.whom}: {said}")


class BearerIdentity(Renewing[Bearer]):
    """Access tokens of one token endpoint. Safe to use from several threads.

    Args:
        service: URL of what gives them, for messages.
        exchange: the question with the service account's token of this moment; raises IdentityRefused without one.
        clock: seconds since 1970.
    """

    def __init__(
        self, service: str, exchange: Callable[[], TokenExchange], clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(service, lambda: exchange().ask(clock), clock)


def _seconds(value: object) -> float | None:
    """A number of seconds, also where it is written as text."""
    if not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if seconds == seconds else None  # not NaN
