"""Who may read the page: on this machine's loopback whoever asks by a loopback name, elsewhere whoever has the token. Pure, except for reading a
file.

A name check stands against pages of other sites that rebind their own name to 127.0.0.1. The token is compared in constant time; a browser trades it
for a cookie that scripts cannot read. Nothing here changes anything: there is no request that writes.
"""

import hashlib
import hmac
import ipaddress
import secrets
from dataclasses import dataclass
from pathlib import Path

COOKIE = "shoal_ui"
SHORTEST_TOKEN = 16
LONGEST_TOKEN = 512

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), clipboard-read=()",
    "Cache-Control": "no-store",
}
"""On every answer. Nothing from other hosts, no inline script or style, no markup made from text, no frame, no form."""


class BadPageToken(ValueError):
    """The token cannot be used; the message says why."""


@dataclass(frozen=True)
class Access:
    """`token` None: open to whoever reaches the address by one of `names`."""

    token: str | None
    names: frozenset[str]

    def knows_name(self, host_header: str) -> bool:
        """Whether the request was made to a name of ours; without a token a foreign name is another site's page."""
        if self.token is not None:
            return True
        return host_name(host_header) in self.names

    def may_read(self, authorization: str, cookie: str) -> bool:
        if self.token is None:
            return True
        given = authorization[len("Bearer ") :] if authorization.startswith("Bearer ") else ""
        return self.is_token(given) or hmac.compare_digest(cookie.encode(), self.cookie_value().encode())

    def is_token(self, text: str) -> bool:
        return self.token is not None and hmac.compare_digest(text.encode(), self.token.encode())

    def cookie_value(self) -> str:
        """The cookie's value, which the browser keeps instead of the token: it is of no use elsewhere."""
        return hashlib.sha256(b"shoal ui cookie\0" + (self.token or "").encode()).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether nobody outside this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_name(header: str) -> str:
    """The name in a Host header, without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def access_for(host: str, token_file: Path | None) -> Access:
    """Access of a page bound to `host`: a token from the file, a fresh one off loopback, none on loopback. Raises `BadPageToken`, OSError."""
    if token_file is not None:
        token: str | None = checked_token(token_file.read_text(encoding="utf-8", errors="replace").strip(), token_file)
    else:
        token = None if is_loopback(host) else secrets.token_urlsafe(24)
    return Access(token, frozenset({"localhost", "127.0.0.1", "::1", host.strip("[]").lower()}))


def checked_token(text: str, where: Path) -> str:
    """A token that a header can carry and nobody guesses; raises `BadPageToken`."""
    if not SHORTEST_TOKEN <= len(text) <= LONGEST_TOKEN or not text.isascii() or not text.isprintable() or " " in text:
        raise BadPageToken(
            f"{where}: a token has {SHORTEST_TOKEN} to {LONGEST_TOKEN} printable ASCII characters without spaces; "
            "create one with `openssl rand -hex 24`"
        )
    return text
