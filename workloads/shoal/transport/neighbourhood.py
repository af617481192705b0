"""What a run may make a stranger's machine call: its public parts, and nothing in the machine's own network.

Comes in: URLs that discovery's invite, heartbeats and upload grants name, which a hostile run may fill with a router's or a cloud's own address. Goes
out: nothing, or `ForbiddenUrl`. Used by the session of a machine that joined by `shoal node join`; a pool's own pods live in the run's network.
"""

import ipaddress
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import httpx
import structlog

Kind = Literal["loopback", "link-local", "private", "public"]
"""Private is everything that is neither of the others: RFC 1918, carriers' and documentation networks, multicast, reserved."""

_EMBEDDING = (
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64, RFC 6052: the IPv4 address is the last 32 bits
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4, RFC 3056: the 32 bits after the prefix
)


GOOD_SECONDS = 300.0
"""How long a relay's URL that may be called is not looked up again: heartbeats name all of them every ten seconds."""


class ForbiddenUrl(ValueError):
    """The run named an address that this machine does not call for it; the message says which and why."""


def kind_of(address: str) -> Kind:
    """The class of an IP address for the machine that would connect to it; raises ValueError for anything else."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return kind_of(str(found.ipv4_mapped))
        for network, shift in _EMBEDDING:
            if found in network:
                return kind_of(str(ipaddress.IPv4Address((int(found) >> shift) & 0xFFFFFFFF)))
    if found.is_loopback or found.is_unspecified or found in ipaddress.ip_network("0.0.0.0/8"):
        return "loopback"  # Linux takes 0.0.0.0 and :: for this machine
    if found.is_link_local:
        return "link-local"
    return "public" if found.is_global and not found.is_multicast else "private"


def resolve(host: str) -> list[str]:
    """Every address of a name, or the address itself; raises OSError."""
    return sorted({str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})


class Neighbourhood:
    """Judges URLs by where they lead, measured by where discovery was reached. Not more than discovery's own network is allowed.

    Where discovery is, is taken from the connection that its answer came over, not from its name: a name server in hostile hands could say anything.
    """

    def __init__(self, discovery: str, resolver: Callable[[str], Sequence[str]] = resolve) -> None:
        self._https = discovery.startswith("https:")
        self._resolve = resolver
        self._allowed: frozenset[Kind] = frozenset({"public"})
        self._good_until: dict[str, float] = {}  # monotonic
        self._refused: set[str] = set()

    def discovery_is_at(self, address: str) -> None:
        """Take note of discovery's address. A run on this machine may name any; one in a private network, what is private."""
        kinds: dict[Kind, frozenset[Kind]] = {
            "loopback": frozenset({"loopback", "link-local", "private", "public"}),
            "link-local": frozenset({"link-local", "private", "public"}),
            "private": frozenset({"private", "public"}),
            "public": frozenset({"public"}),
        }
        try:
            self._allowed = kinds[kind_of(address)]
        except ValueError:
            self._allowed = frozenset({"public"})

    def check(self, url: str) -> None:
        """Raise `ForbiddenUrl` unless every address behind `url` may be called; one that cannot be found out may not."""
        try:
            parts = httpx.URL(url)  # as it is read when it is called
        except (httpx.InvalidURL, ValueError) as error:
            raise ForbiddenUrl(f"{url[:200]!r} is no URL: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.host or parts.userinfo:
            raise ForbiddenUrl(f"{url[:200]!r} is not a plain http or https URL")
        if self._https and parts.scheme != "https":
            raise ForbiddenUrl(f"{url[:200]!r} is not HTTPS, as discovery is")
        try:
            addresses = self._resolve(parts.host)
        except (OSError, UnicodeError) as error:
            raise ForbiddenUrl(f"{parts.host!r} has no address: {error}") from error
        for address in addresses:
            kind = kind_of(address)
            if kind not in self._allowed:
                raise ForbiddenUrl(
                    f"{url[:200]!r} leads to {address}, a {kind} address of this machine's surroundings, and discovery is not there"
                )

    def reachable(self, urls: Iterable[str]) -> list[str]:
        """Those of `urls` that may be called; of the others the log says it once. Verdicts on good ones are kept for `GOOD_SECONDS`."""
        now, kept, refused = time.monotonic(), dict[str, float](), set[str]()
        for url in urls:
            try:
                if self._good_until.get(url, now) <= now:
                    self.check(url)
                    self._good_until[url] = now + GOOD_SECONDS
                kept[url] = self._good_until[url]
            except ForbiddenUrl as error:
                refused.add(url)
                if url not in self._refused:
                    structlog.get_logger().warning("relay is not used", reason=str(error)[:500])
        self._good_until, self._refused = kept, refused
        return list(kept)
