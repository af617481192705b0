"""Child objects of our four kinds, as pure functions: (spec, what is observed, surroundings) -> list of plain dicts.

No clock, no I/O, no private keys: Secrets are named here and made by reconcile. The same lists go to an API server and to processes on one machine.
"""

from shoal_operator.children.inference_pool import inference_pool_children
from shoal_operator.children.own_kinds import References
from shoal_operator.children.relay_server import relay_server_children
from shoal_operator.children.training_run import ObservedRun, RunIdentity, training_run_children
from shoal_operator.children.validator import validator_children

__all__ = [
    "ObservedRun",
    "References",
    "RunIdentity",
    "inference_pool_children",
    "relay_server_children",
    "training_run_children",
    "validator_children",
]
