"""Who may read from this nginx: the answer to its `auth_request`, given without asking anyone.

In: the `Authorization` header that nginx passes on. Out: 204 with the node id for nginx's limits and log, or 401. The relay's sync agent asks for
tokens of the orchestrator, the origin's publisher for those of the relay role. Served on the health port of either.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from email.message import Message

from prometheus_client import Counter

from shoal.contracts import relay_token

NODE_HEADER = "X-Shoal-Node"
REMEMBERED_TOKENS = 4096  # a signature is checked once a token (30 s), not once a shard
ANSWERS = Counter("shoal_relay_token_checks_total", "Tokens checked for nginx, by outcome.", ["outcome"])


class Gate:
    """Checks bearer tokens signed by `signer` for `run`; with `node`, only that node's."""

    def __init__(
        self, signer: str, run: str, *, node: str | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._signer = signer
        self._run = run
        self._node = node
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def node_of(self, authorization: str | None) -> str:
        """The node id that the header proves; raises `relay_token.BadToken` with the reason."""
        scheme, _, word = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not word:
            raise relay_token.BadToken("no token; send 'Authorization: Bearer <relay token>'")
        now = self._clock()
        with self._lock:
            known = self._known.get(word)
        if known is not None and known[1] >= now:
            return known[0]
        token = relay_token.decode(word, signer=self._signer, run=self._run, now_unix=now)
        if self._node is not None and token.node != self._node:
            raise relay_token.BadToken("token is not that of the relay role")
        with self._lock:
            self._known[word] = (token.node, token.expires_unix)
            while len(self._known) > REMEMBERED_TOKENS:
                self._known.popitem(last=False)
        return token.node

    def answer(self, headers: Message) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for nginx. The reason goes to the caller too: it names no secret."""
        try:
            node = self.node_of(headers.get("Authorization"))
        except relay_token.BadToken as error:
            ANSWERS.labels("refused").inc()
            challenge = f'Bearer error="invalid_token", error_description="{str(error).replace(chr(34), chr(39))}"'
            return 401, {"WWW-Authenticate": challenge}, str(error).encode()
        ANSWERS.labels("granted").inc()
        return 204, {NODE_HEADER: node}, b""
