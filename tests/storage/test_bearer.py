"""What a token endpoint of OAuth 2.0 answers: a token with an end, a refusal in the service's own words, or that it cannot now."""

import json
from collections.abc import Callable

import pytest

from shoal.storage.bearer import Bearer, TokenExchange
from shoal.storage.identity import IdentityRefused, TokenServiceAway

TOKEN = "header.claims.signature"


def asked(url: str, now: float = 0.0) -> Bearer:
    return TokenExchange(url, url, {"assertion": TOKEN}, TOKEN, "client a to service account b", ("LATE",)).ask(
        lambda: now
    )


@pytest.mark.parametrize(
    ("status", "answer", "kind"),
    [
        (200, b"<html>hello</html>", IdentityRefused),
        (200, b"[]", IdentityRefused),
        (200, b'{"access_token": "a", "expires_in": "soon"}', IdentityRefused),
        (200, b'{"access_token": "", "expires_in": 3600}', IdentityRefused),
        (200, b'{"access_token": 3, "expires_in": NaN}', IdentityRefused),
        (200, b"[" * 60_000, IdentityRefused),
        (200, b'{"access_token": "a", "expires_in": 0}', TokenServiceAway),
        (503, b"", TokenServiceAway),
        (429, b"", TokenServiceAway),
        (400, b'{"error": "temporarily_unavailable"}', TokenServiceAway),
        (400, b'{"error": "invalid_grant", "error_description": "it is LATE"}', TokenServiceAway),
        (400, b"\xff\xfe", IdentityRefused),
    ],
)
def test_a_service_that_is_none_is_told_from_one_that_cannot_now(
    status: int, answer: bytes, kind: type[Exception], strange_service: Callable[[int, bytes], str]
) -> None:
    with pytest.raises(kind, match="token service http"):
        asked(strange_service(status, answer))


@pytest.mark.parametrize(("life", "ends"), [("3600", 4600.0), ('"60"', 1060.0), ("1e300", 87_400.0)])
def test_a_token_ends_after_its_life_and_a_day_at_the_latest(
    life: str, ends: float, strange_service: Callable[[int, bytes], str]
) -> None:
    url = strange_service(200, f'{{"access_token": "given", "expires_in": {life}}}'.encode())
    assert asked(url, 1000.0) == Bearer("given", ends)


def test_a_message_that_repeats_the_token_is_shown_without_it(strange_service: Callable[[int, bytes], str]) -> None:
    answer = json.dumps({"error": "invalid_client", "error_description": f"{TOKEN}\n\x1b[31m is bad"}).encode()
    with pytest.raises(IdentityRefused, match=r"refuses client a to .*: invalid_client: \(token\) \[31m is bad$"):
        asked(strange_service(400, answer))


def test_a_service_that_does_not_answer_is_away_and_no_text_shows_the_token() -> None:
    with pytest.raises(TokenServiceAway, match="does not answer"):
        asked("http://127.0.0.1:1")
    exchange = TokenExchange("s", "http://s", {"assertion": TOKEN}, TOKEN, "a", ())
    assert TOKEN not in repr(exchange)
    assert "given" not in repr(Bearer("given", 1.0))
