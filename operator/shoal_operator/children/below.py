"""Children of our own kinds as a run makes them: what the reconcile of each will make of it. Pure.

`shoal render` prints them, and a queue reserves room for their pods before they exist.
"""

from collections.abc import Mapping

from shoal.contracts.run import Addresses, NodeConfig
from shoal_operator.api import InferencePool, RelayServer, Validator
from shoal_operator.children.inference_pool import inference_pool_children, pool_group_claims
from shoal_operator.children.relay_server import relay_server_children
from shoal_operator.children.training_run import RunIdentity
from shoal_operator.children.validator import validator_children
from shoal_operator.engine.cluster import Object


def below(made: Object, identity: RunIdentity, addresses: Addresses, hashes: Mapping[str, str]) -> list[Object]:
    """Children of a pool, relays or validators; none of any other object."""
    match made["kind"]:
        case "InferencePool":
            pool = InferencePool.model_validate(made)
            join = NodeConfig(
                run=pool.spec.run,
                pool=pool.spec.pool,
                runners=addresses.runners,
                discovery=addresses.discovery,
                roster=identity.roster,
                run_key=identity.run_key,
            )
            return [*inference_pool_children(pool, join), *(pool_group_claims(pool) or ())]
        case "RelayServer":
            return relay_server_children(RelayServer.model_validate(made), hashes["relay"])
        case "Validator":
            return validator_children(Validator.model_validate(made), hashes["validator"])
    return []
