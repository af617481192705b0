"""Untrusted programs under the best isolation that the machine has. `run` is all that an environment needs."""

from shoal.rewards.sandbox.isolation import Isolation, choose
from shoal.rewards.sandbox.pool import SandboxPool, shared_pool, trial, use_runners
from shoal.rewards.sandbox.program import Call, Limits, NoIsolation, Outcome, Program, SandboxFailed
from shoal.rewards.sandbox.slots import slots_here

__all__ = [
    "Call",
    "Isolation",
    "Limits",
    "NoIsolation",
    "Outcome",
    "Program",
    "SandboxFailed",
    "SandboxPool",
    "choose",
    "shared_pool",
    "slots_here",
    "trial",
    "use_runners",
]
