"""Keeps a process's keys of a run up to date: asks the orchestrator every few seconds whether any was changed (ADR 0077).

In: `TrustedKeys`, the orchestrator's address. Out: the same keys, newer. What comes proves itself, so that it may come from anybody over plain HTTP:
a forged roster is refused, an old one changes nothing. There is one request in ten seconds, answered with 204 while nothing has changed.
"""

import random
import threading
from collections.abc import Callable

from shoal.contracts.trust import KeysNotice, TrustedKeys
from shoal.telemetry import STOP, get_logger
from shoal.transport.client import SignedClient

ASK_SECONDS = 10.0
"""A leaked key is to be refused everywhere within a minute: the orchestrator starts again with the new roster, and then everybody asks once."""
DEADLINE_SECONDS = 5.0
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
    newest = keys.roster.changes[-1].document
    get_logger().warning(
        "a key of the run was changed", role=newest.role, leaked=newest.leaked, generation=keys.roster.generation
    )
    return True


class KeysWatch:
    """A thread that asks."""

    def __init__(self, keys: TrustedKeys, orchestrator: str, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called after a newer roster was taken."""
        self.keys = keys
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

    def turn(self, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        """Ask once; a server that is away, older or lying is logged once, and what is known stands. Raises nothing: the thread must go on."""
        problem = ""
        try:
            newer = ask_for_keys(
                self._client, self.keys, all_of_it=not self._answered, deadline_seconds=deadline_seconds
            )
            self._answered = True
            if newer:
                self._changed()
        except Exception as error:  # `Refused`, `Unavailable`, `BadSignature`, and whatever else an answer brings about
            problem = f"{type(error).__name__}: {str(error)[:300]}"
        if problem and problem != self._problem:
            get_logger().warning("cannot learn of changed keys", problem=problem)
        self._problem = problem

    def _follow(self) -> None:
        while not STOP.wait(ASK_SECONDS * random.uniform(0.8, 1.2)):
            self.turn()
