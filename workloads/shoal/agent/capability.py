"""The capability check on the node's side: takes a challenge, computes it with what the machine has, and answers. Called by `session`."""

import time
from collections.abc import Callable

from shoal.agent import hardware
from shoal.contracts.protocol import Challenge, ChallengeAnswer, ChallengeRequest, ChallengeResult
from shoal.crypto.challenge import LANES, ChallengeWork, TooSlow, encode_answer, solve, solve_with_torch
from shoal.telemetry import get_logger
from shoal.transport import SignedClient, Unavailable

GoOn = Callable[[], bool]
Solver = Callable[[ChallengeWork, GoOn], bytes]

LARGEST_DEPTH = 4096
"""Four times the work of Shoal's own challenges: a hostile orchestrator cannot keep a node busy forever."""
LONGEST_SECONDS = 600.0
"""Nor for longer than this, whatever limit it is given: an orchestrator of ours gives at least 4.4 seconds and, for 1 gflops, less than ten."""


def best_solver() -> Solver:
    """The GPU, warmed up, where torch and a GPU are there; else numpy."""
    if not hardware.NVIDIA.is_dir():
        return solve  # torch takes seconds to import, and could not do better
    try:
        import torch
    except ImportError:
        return solve
    if not torch.cuda.is_available():
        return solve

    def on_gpu(work: ChallengeWork, go_on: GoOn) -> bytes:
        return solve_with_torch(work, torch, "cuda", go_on)

    on_gpu(
        ChallengeWork(bytes(32), lanes=LANES, depth=2), lambda: True
    )  # loads the driver's libraries, which takes seconds
    return on_gpu


def show(client: SignedClient, node: str, progress: Callable[[], None] = lambda: None) -> ChallengeResult:
    """Take and answer a challenge, calling `progress` while it computes.

    Raises `TooSlow` once the time is over, `Refused` when the orchestrator rejects the answer, `Unavailable` when it does not answer.
    """
    solver = best_solver()  # before the clock runs
    challenge = client.call("POST", "/v1/challenges", ChallengeRequest(node=node), Challenge, deadline_seconds=10.0)
    if challenge is None or challenge.node != node or challenge.depth > LARGEST_DEPTH or challenge.lanes > LANES:
        raise Unavailable("the orchestrator's challenge is not for this node")
    begun = time.monotonic()
    limit = min(challenge.limit_seconds, LONGEST_SECONDS)

    def go_on() -> bool:
        progress()
        return time.monotonic() - begun < limit

    try:
        product = solver(ChallengeWork(bytes.fromhex(challenge.seed), challenge.lanes, challenge.depth), go_on)
    except TooSlow as slow:
        raise TooSlow(f"{slow}, which is {limit:.1f} s for this pool") from slow
    get_logger().info("challenge computed", seconds=round(time.monotonic() - begun, 2), on_gpu=solver is not solve)
    answer = ChallengeAnswer(node=node, challenge=challenge.challenge, product=encode_answer(product))
    result = client.call(
        "POST", "/v1/challenge-answers", answer, ChallengeResult, deadline_seconds=60.0, timeout_seconds=30.0
    )
    if result is None:
        raise Unavailable("the orchestrator's answer has no result")
    return result
