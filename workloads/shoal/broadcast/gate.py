"""Who may read from this nginx: the answer to its `auth_request`, given without asking anyone.

In: the `Authorization` header that nginx passes on. Out: 204 with the node id for nginx's limits and log, 401 without a good token, 403 to a node
that was evicted, whatever its token. The relay's sync agent asks for tokens of the orchestrator, the origin's publisher for those of the relay role.
Served on the health port of either.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from email.message import Message

from prometheus_client import Counter

from shoal.contracts import relay_token
from shoal.contracts.protocol import RelayToken

NODE_HEADER = "X-Shoal-Node"
REMEMBERED_TOKENS = 4096  # a signature is checked once a token (30 s), not once a shard
REMEMBERED_NODES = 65_536  # those that were served here; the longest ago are forgotten
ANSWERS = Counter("shoal_relay_token_checks_total", "Tokens checked for nginx, by outcome.", ["outcome"])


class Excluded(Exception):
    """The token is the orchestrator's, its node was evicted or banned."""


class TokenGate:
    """Checks bearer tokens for `run`: those of any node signed by one of `nodes_signers`, and those that one of `relay_keys` made for itself.

    Both give the keys that act now. At the origin only the latter are good; a relay takes both, because it may feed further relays.
    """

    def __init__(
        self,
        run: str,
        relay_keys: Callable[[], Sequence[str]],
        nodes_signers: Callable[[], Sequence[str]] | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run = run
        self._relay_keys = relay_keys
        self._nodes_signers = nodes_signers
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._served: OrderedDict[str, None] = OrderedDict()
        self._excluded: frozenset[str] | None = None

    def exclude(self, nodes: Collection[str]) -> set[str]:
        """From now on exactly these nodes are refused; returns the new ones that were served here.

        At the first call nobody knows whom an earlier process served: then it is all of them.
        """
        with self._lock:
            known, self._excluded = self._excluded, frozenset(nodes)
            if known is None:
                return set(nodes)
            served = {node for node in self._excluded - known if node in self._served}
            for node in served:
                del self._served[node]
            return served

    def forget(self) -> None:
        """Check every token again: a key that signed some may have leaked."""
        with self._lock:
            self._known.clear()

    def node_of(self, authorization: str | None) -> str:
        """The node id that the header proves; raises `relay_token.BadToken` or `Excluded` with the reason."""
        scheme, _, word = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not word:
            raise relay_token.BadToken("no token; send 'Authorization: Bearer <relay token>'")
        now = self._clock()
        with self._lock:
            node, expires = self._known.get(word, ("", 0))
        if not node:
            token = self._decode(word, 0.0)  # an evicted node is told so even when its token has run out
            node, expires = token.node, token.expires_unix
        with self._lock:
            if self._excluded is not None and node in self._excluded:
                raise Excluded("this node was evicted from the run; the ledger has the reason")
            if expires < now:
                raise relay_token.BadToken("token has expired")
            self._known[word] = (node, expires)
            while len(self._known) > REMEMBERED_TOKENS:
                self._known.popitem(last=False)
            self._served[node] = None
            self._served.move_to_end(node)
            while len(self._served) > REMEMBERED_NODES:
                self._served.popitem(last=False)
        return node

    def _decode(self, word: str, now: float) -> RelayToken:
        error = relay_token.BadToken("no key of the run signs tokens")
        for key in self._relay_keys():
            try:
                token = relay_token.decode(word, signer=key, run=self._run, now_unix=now)
                if token.node == key:
                    return token
                error = relay_token.BadToken("the token does not belong to the relay role")
            except relay_token.BadToken as found:
                error = found
        for key in self._nodes_signers() if self._nodes_signers is not None else ():
            try:
                return relay_token.decode(word, signer=key, run=self._run, now_unix=now)
            except relay_token.BadToken as found:
                error = found
        raise error

    def answer(self, headers: Message) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for nginx. The reason goes to the caller too: it names no secret."""
        try:
            node = self.node_of(headers.get("Authorization"))
        except relay_token.BadToken as error:
            ANSWERS.labels("refused").inc()
            challenge = f'Bearer error="invalid_token", error_description="{str(error).replace(chr(34), chr(39))}"'
            return 401, {"WWW-Authenticate": challenge}, str(error).encode()
        except Excluded as error:
            ANSWERS.labels("excluded").inc()
            return 403, {}, str(error).encode()
        ANSWERS.labels("granted").inc()
        return 204, {NODE_HEADER: node}, b""
