"""Programs judged in runner pods: the other side of `shoal.rewards.runner`, with the interface of a `SandboxPool`.

In: programs, from any thread. Out: outcomes. A runner is asked over HTTP; one that is busy (429, 503) or away is asked again after a pause, or
another is, until a deadline. A runner that dies with a program in it is not a verdict on the program: it is run again elsewhere, a few times. What
fails for good is `SandboxFailed`, by which nobody's score is zero. Made by `pool.use_runners`.
"""

import itertools
import random
import threading
from collections.abc import Sequence

import httpx
from pydantic import ValidationError

from shoal.contracts.programs import MAX_OUTCOME_BYTES
from shoal.retries import Backoff, retrying
from shoal.rewards.sandbox.documents import outcome_of, request_of
from shoal.rewards.sandbox.process import MOST_WALLS, START_SECONDS
from shoal.rewards.sandbox.program import Outcome, Program, SandboxFailed
from shoal.transport.authorities import well_known
from shoal.transport.bounded import UNENCODED, body_of

SLOTS_OF_A_RUNNER = 4
"""Programs that are sent to one runner at once; one that has fewer slots lets some wait."""
PATIENCE_SECONDS = 120.0
"""How long runners may be busy or away, on top of the program's own time."""
MOST_LOSSES = 3
"""A program whose runner was lost this often is not asked about again: it may be the cause."""
PAUSES = Backoff(0.05, 2.0)
CONNECT_SECONDS = 5.0


class _Away(Exception):
    """A runner did not take the program; another one may, or this one later."""


class RunnerPool:
    """Runners by their URLs."""

    def __init__(self, urls: Sequence[str], *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        if not urls:
            raise ValueError("no runner is given; give one URL or more")
        self._urls = [url.rstrip("/") for url in urls]
        self._patience = patience_seconds
        self.slots = SLOTS_OF_A_RUNNER * len(self._urls)
        # A name may stand for a pod that was replaced since: connections are not kept for long.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=5.0)
        self._http = httpx.Client(verify=well_known(), trust_env=False, limits=limits)

    def run(self, program: Program) -> Outcome:
        """Run one program to its end on some runner. SandboxFailed when none could, which says nothing about the program."""
        return self._run(program, threading.Event())

    def run_all(self, programs: Sequence[Program]) -> list[Outcome]:
        """Outcomes in the order of the programs, `slots` of them at once. The first that fails ends the asking for the others."""
        outcomes: dict[int, Outcome] = {}
        problems: list[Exception] = []
        waiting, lock, given_up = iter(enumerate(programs)), threading.Lock(), threading.Event()

        def work() -> None:
            while not given_up.is_set():
                with lock:
                    number, program = next(waiting, (-1, None))
                if program is None:
                    return
                try:
                    outcomes[number] = self._run(program, given_up)
                except Exception as error:  # raised below, in the thread that asked
                    problems.append(error)
                    given_up.set()

        # Not a pool: a process that ends must not wait for runners that are away.
        count = min(self.slots, len(programs))
        threads = [threading.Thread(target=work, name=f"runner-{number}", daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
        return [outcomes[number] for number in range(len(programs))]

    def close(self) -> None:
        self._http.close()

    def _run(self, program: Program, given_up: threading.Event) -> Outcome:
        body = request_of(program)
        longest = MOST_WALLS * program.limits.wall_seconds + START_SECONDS
        places = itertools.count(random.randrange(len(self._urls)))
        losses = 0

        def once() -> Outcome:
            nonlocal losses
            url = self._urls[next(places) % len(self._urls)]
            try:
                status, answer = self._ask(url, body, longest + self._patience)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                raise _Away(f"{url} cannot be reached ({error or type(error).__name__})") from error
            except httpx.HTTPError as error:
                losses += 1
                problem = f"{url} was lost with the program in it ({error or type(error).__name__})"
                if losses == MOST_LOSSES:
                    raise SandboxFailed(
                        f"a runner was lost {losses} times with this program in it; the last: {problem}"
                    ) from error
                raise _Away(problem) from error
            if status == 200:
                return _outcome_of(url, answer)
            said = answer[:300].decode(errors="replace")
            if status < 500 and status != 429:
                raise SandboxFailed(f"runner {url} refuses the program with {status}: {said}")
            raise _Away(f"{url} answers {status}: {said}")

        def pause(seconds: float) -> None:
            if given_up.wait(seconds):
                raise SandboxFailed("another program of the batch failed")

        return retrying(
            (_Away,),
            PAUSES,
            deadline_seconds=longest + self._patience,
            give_up=lambda error, _: SandboxFailed(
                f"no runner accepted the program within {longest + self._patience:.0f} s: {error}"
            ),
            pause=pause,
        )(once)

    def _ask(self, url: str, body: bytes, seconds: float) -> tuple[int, bytes]:
        """Status and body of one try; a body that is too long reads as a lost runner."""
        headers = {"Content-Type": "application/json"} | UNENCODED
        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        with self._http.stream("POST", f"{url}/v1/programs", content=body, headers=headers, timeout=timeout) as reply:
            return reply.status_code, body_of(reply, MAX_OUTCOME_BYTES)


def _outcome_of(url: str, answer: bytes) -> Outcome:
    try:
        return outcome_of(answer)
    except ValidationError as error:
        raise SandboxFailed(f"runner {url} gave no outcome: {error.error_count()} fields are wrong") from error
