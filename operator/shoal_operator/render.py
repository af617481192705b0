"""What `shoal render` prints: every object that the operator would apply for a run, its custom objects' children too. Pure; applies nothing.

Addresses are those in a cluster. Keys are made by the operator at its first reconcile, so Secrets are shown without data and public keys as zeros.
"""

from typing import Any

import yaml

from shoal.contracts.canonical import Signed
from shoal.contracts.identity import ROLES, Roster
from shoal.contracts.run import NodeConfig
from shoal_operator.api import InferencePool, RelayServer, TrainingRun, Validator
from shoal_operator.children import (
    ObservedRun,
    RunIdentity,
    inference_pool_children,
    names,
    relay_server_children,
    training_run_children,
    validator_children,
)
from shoal_operator.children.pods import child
from shoal_operator.children.training_run import config_hashes, run_config
from shoal_operator.engine.cluster import Object

PLACEHOLDER_KEY = "0" * 64


def placeholder_identity(run: str) -> RunIdentity:
    """An identity of zeros, for rendering."""
    roster = Roster(run=run, keys=dict.fromkeys(ROLES, PLACEHOLDER_KEY))
    signed = Signed[Roster](document=roster, signer=PLACEHOLDER_KEY, signature="0" * 128)
    return RunIdentity(run_key=PLACEHOLDER_KEY, roster=signed)


def render(run: TrainingRun) -> list[Object]:
    """All objects of a run as they are once prepare has succeeded, in the order of creation; the run itself is not among them."""
    name, namespace = run.metadata.name, run.metadata.namespace or "default"
    identity = placeholder_identity(name)
    addresses = names.cluster_addresses(name, namespace, run.spec.relay_server.replicas)
    observed = ObservedRun(stage="running", trainer_attempt=1, prepared=True)
    if run.spec.suspend:
        observed = ObservedRun(stage="suspended", prepared=True)
    hashes = config_hashes(run_config(run, identity, addresses))
    rendered = secret_placeholders(name)
    for made in training_run_children(run, identity, observed, addresses):
        rendered.append(made)
        rendered += _below(made, identity, addresses.discovery, hashes)
    for made in rendered:
        made["metadata"]["namespace"] = namespace
    return rendered


def secret_placeholders(run: str) -> list[Object]:
    """The Secrets of a run, without what they hold."""
    secrets = [names.run_key_secret(run), *(names.role_secret(run, role) for role in ROLES)]
    return [child("Secret", secret, run, "keys", {"type": "Opaque"}) for secret in secrets]


def _below(made: Object, identity: RunIdentity, discovery: str, hashes: dict[str, str]) -> list[Object]:
    """Children of one of our own kinds."""
    match made["kind"]:
        case "InferencePool":
            pool = InferencePool.model_validate(made)
            run = pool.spec.run
            join = NodeConfig(
                run=run, pool=pool.spec.pool, discovery=discovery, roster=identity.roster, run_key=identity.run_key
            )
            return inference_pool_children(pool, join)
        case "RelayServer":
            return relay_server_children(RelayServer.model_validate(made), hashes["relay"])
        case "Validator":
            return validator_children(Validator.model_validate(made), hashes["validator"])
    return []


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, and no anchors: the output is to be read and to be applied."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(objects: list[Object]) -> str:
    """Objects as one YAML stream."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=120, explicit_start=True)
