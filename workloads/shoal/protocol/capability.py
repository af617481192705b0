"""The capability check on the node's side: takes a challenge, computes it with what the machine has, and answers. Called by `session`."""

import time

from shoal.contracts.challenge import Product, Work, encode_answer, solve, torch_multiply
from shoal.contracts.protocol import Challenge, ChallengeAnswer, ChallengeRequest, ChallengeResult
from shoal.telemetry import get_logger
from shoal.transport import SignedClient, Unavailable

LARGEST_DEPTH = 4096
"""Four times what an orchestrator of ours asks for: a node does not compute for ever because somebody says so."""


def best_multiply() -> Product | None:
    """The GPU's product where torch and a GPU are there, else None: numpy's."""
    try:
        import torch
    except ImportError:
        return None
    return torch_multiply(torch, "cuda") if torch.cuda.is_available() else None


def show(client: SignedClient, node: str) -> ChallengeResult:
    """Take and answer a challenge; raises `Refused` when the orchestrator does not take the answer, `Unavailable` when it is away."""
    multiply = best_multiply()  # before the clock runs
    challenge = client.call("POST", "/v1/challenges", ChallengeRequest(node=node), Challenge, deadline_seconds=10.0)
    if challenge is None or challenge.node != node or challenge.depth > LARGEST_DEPTH:
        raise Unavailable("the orchestrator gave no challenge that can be meant for this node")
    begun = time.monotonic()
    product = solve(Work(bytes.fromhex(challenge.seed), challenge.lanes, challenge.depth), multiply)
    get_logger().info("challenge computed", seconds=round(time.monotonic() - begun, 2), on_gpu=multiply is not None)
    answer = ChallengeAnswer(node=node, challenge=challenge.challenge, product=encode_answer(product))
    result = client.call(
        "POST", "/v1/challenge-answers", answer, ChallengeResult, deadline_seconds=60.0, timeout_seconds=30.0
    )
    if result is None:
        raise Unavailable("the orchestrator answered without a result")
    return result
