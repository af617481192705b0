"""Keeps a process's keys of a run up to date: asks the orchestrator every few seconds whether any was changed (ADR 0077).

In: `TrustedKeys`, the orchestrator's address, the roster of the mounted configuration. Out: the same keys, newer.
What comes proves itself, so that it may come from anybody over plain HTTP:
a forged roster is refused, an old one changes nothing. There is one request in ten seconds, answered with 204 while nothing has changed.
"""

import random
import threading
import time
from collections.abc import Callable

from shoal.contracts.base import Contract
from shoal.contracts.roster import Role, Roster
from shoal.contracts.signed import Signed
from shoal.contracts.trust import KeysNotice, TrustedKeys
from shoal.telemetry import STOP, Stopped, get_logger
from shoal.transport.client import Refused, SignedClient, Unavailable

ASK_SECONDS = 10.0
"""A leaked key is to be refused everywhere within a minute: the orchestrator starts again with the new roster, and then everybody asks once."""
DEADLINE_SECONDS = 5.0
REFUSED_DEADLINE_SECONDS = 300.0
"""For a reader that met an unknown key: an orchestrator that starts again answers within a minute or two."""
REFUSED_PAUSE_SECONDS = 1.0
FIRST_DEADLINE_SECONDS = 60.0
"""For a process that starts after a change: it must know what earlier keys are still believed about before it reads anything."""


def ask_for_keys(
    client: SignedClient, keys: TrustedKeys, *, all_of_it: bool, deadline_seconds: float = DEADLINE_SECONDS
) -> bool:
    """Ask one server once; True when a newer roster came. Raises `Refused`, `Unavailable`, and `BadSignature` for keys that are not the run's."""
    after = 0 if all_of_it else keys.roster.generation
    notice = client.call("GET", f"/v1/keys?after={after}", None, KeysNotice, deadline_seconds=deadline_seconds)
    if notice is None or not keys.take(notice):
        return False
    _log_change(keys)
    return True


def _log_change(keys: TrustedKeys) -> None:
    newest = keys.roster.changes[-1].document
    get_logger().warning(
        "a key of the run was changed", role=newest.role, leaked=newest.leaked, generation=keys.roster.generation
    )


class KeysWatch:
    """A thread that asks."""

    def __init__(
        self,
        keys: TrustedKeys,
        orchestrator: str,
        changed: Callable[[], None] = lambda: None,
        mounted: Callable[[], Signed[Roster] | None] = lambda: None,
    ) -> None:
        """`changed` is called after a newer roster was taken. `mounted` reads the configuration's roster, which may be newer than this process."""
        self.keys = keys
        self._mounted = mounted
        self._client = SignedClient(orchestrator, timeout_seconds=DEADLINE_SECONDS)
        self._changed = changed
        self._answered = False
        self._problem = ""

    def start(self, *, wait: bool = False) -> "KeysWatch":
        """Begin. With `wait` the first answer is waited for where keys were changed before."""
        if wait and self.keys.roster.changes:
            self.turn(FIRST_DEADLINE_SECONDS)
        threading.Thread(target=self._follow, name="keys", daemon=True).start()
        return self

    def turn(self, deadline_seconds: float = DEADLINE_SECONDS, *, all_of_it: bool = False) -> bool:
        """Read the mounted roster, and ask once; returns whether an answer came, be it that there is nothing newer.

        An orchestrator whose key leaked reads its ledger before it answers: the mounted roster refuses that key at once.

        A server that is away, older or lying is logged once, and what is known stands. Raises nothing: the thread must go on. `all_of_it`: also what
        is known by generation, with the newest about the past.
        """
        problem, answered = self._take_mounted(), False
        try:
            newer = ask_for_keys(
                self._client, self.keys, all_of_it=all_of_it or not self._answered, deadline_seconds=deadline_seconds
            )
            self._answered = answered = True
            if newer:
                self._changed()
        except Exception as error:  # `Refused`, `Unavailable`, `BadSignature`, and whatever else an answer brings about
            answered = answered or (isinstance(error, Refused) and not error.passing)
            problem = f"{type(error).__name__}: {str(error)[:300]}"
        if problem and problem != self._problem:
            get_logger().warning("cannot learn of changed keys", problem=problem)
        self._problem = problem
        return answered

    def _take_mounted(self) -> str:
        """Take the mounted roster if it is newer; returns what went wrong."""
        try:
            signed = self._mounted()
            if signed is not None and self.keys.adopt(signed):
                self._answered = False  # a file says nothing about the past
                _log_change(self.keys)
                self._changed()
        except Exception as error:  # the file may be missing or of another release, the roster not the run's
            return f"mounted roster: {type(error).__name__}: {str(error)[:300]}"
        return ""

    def believed(self, role: Role) -> "AskedKeys":
        """The keys of a role for a reader that must not take a new key for a stranger's in the seconds between two questions."""
        return AskedKeys(self, role)

    def _follow(self) -> None:
        while not STOP.wait(ASK_SECONDS * random.uniform(0.8, 1.2)):
            self.turn()


class AskedKeys:
    """The keys of one role as signers, which are asked for again before a signer is refused. Safe to use from several threads.

    A document may be there some seconds before its reader learns of the key that signed it. One answer decides: the orchestrator knows a new key
    before it takes anything that the key signed.
    """

    def __init__(self, watch: KeysWatch, role: Role, deadline_seconds: float = REFUSED_DEADLINE_SECONDS) -> None:
        self._watch, self._deadline_seconds = watch, deadline_seconds
        self._keys = watch.keys.of(role)
        self._lock = threading.Lock()
        self._answered: dict[str, float] = {}
        """Refused signers, and when an answer confirmed it: a batch of bad files costs one question."""

    def refusal(self, signer: str, document: Contract) -> str:
        """See `Signers`. Raises `Unavailable` when nobody answers until the deadline: that is no fault of the document."""
        problem = self._keys.refusal(signer, document)
        if not problem:
            return ""
        with self._lock:
            problem = self._keys.refusal(signer, document)
            if problem and time.monotonic() - self._answered.get(signer, -ASK_SECONDS) >= ASK_SECONDS:
                self._ask(problem)
                problem = self._keys.refusal(signer, document)
                now = time.monotonic()
                self._answered = {key: at for key, at in self._answered.items() if now - at < ASK_SECONDS}
                if problem:
                    self._answered[signer] = now
        return problem

    def _ask(self, problem: str) -> None:
        until = time.monotonic() + self._deadline_seconds
        while not self._watch.turn(min(DEADLINE_SECONDS, self._deadline_seconds), all_of_it=True):
            if time.monotonic() >= until:
                raise Unavailable(
                    f"the orchestrator does not say which keys hold, so that a document can be neither believed nor refused ({problem})"
                )
            if STOP.wait(REFUSED_PAUSE_SECONDS):
                raise Stopped("asked to stop while asking which keys hold")
