"""What `shoal render` prints: every object that the operator would apply for a run, its custom objects' children too. Pure; applies nothing.

Addresses are those in a cluster. Keys are made by the operator at its first reconcile, so Secrets are shown without data and public keys as zeros.
"""

from typing import Any

import yaml

from shoal.contracts.roster import ROLES, Roster
from shoal.contracts.signed import Signed
from shoal_operator.api import TrainingRun
from shoal_operator.children import ObservedRun, RunIdentity, names, training_run_children
from shoal_operator.children.below import below
from shoal_operator.children.islands import island_count, serves_lighthouse
from shoal_operator.children.own_kinds import References, relays_of
from shoal_operator.children.run_config import config_hashes, run_config
from shoal_operator.children.runner import runner_count
from shoal_operator.children.ui import parts_map
from shoal_operator.children.workloads import child
from shoal_operator.engine.cluster import Object

PLACEHOLDER_KEY = "0" * 64


def placeholder_identity(run: str, islands: int = 0) -> RunIdentity:
    """An identity of zeros, for rendering a run of this many islands (0: of one trainer)."""
    roster = Roster(run=run, keys=dict.fromkeys(ROLES, PLACEHOLDER_KEY))
    signed = Signed[Roster](document=roster, signer=PLACEHOLDER_KEY, signature="0" * 128)
    return RunIdentity(
        run_key=PLACEHOLDER_KEY,
        roster=signed,
        islands=dict.fromkeys(names.island_names(islands), PLACEHOLDER_KEY),
    )


def render(run: TrainingRun) -> list[Object]:
    """All objects of a run as they are once prepare has succeeded, in the order of creation; the run itself is not among them."""
    name, namespace = run.metadata.name, run.metadata.namespace or "default"
    identity = placeholder_identity(name, island_count(run))
    # References are to objects that others made: here they are not known, and what depends on them has its defaults.
    references = References()
    addresses = names.cluster_addresses(
        name,
        namespace,
        relays_of(run, references).replicas,
        run.spec.relay_server_ref,
        runner_count(run),
        islands=serves_lighthouse(run),
    )
    observed = ObservedRun(stage="running", trainer_attempt=1, prepared=True)
    if run.spec.suspend:
        observed = ObservedRun(stage="suspended", prepared=True)
    hashes = config_hashes(run_config(run, references, addresses, identity.roster, identity.run_key, identity.islands))
    rendered = secret_placeholders(run)
    for made in training_run_children(run, identity, observed, addresses):
        rendered.append(made)
        rendered += below(made, identity, addresses, hashes)
    if run.spec.ui is not None:
        rendered.append(parts_map(name, []))  # filled from what is there
    for made in rendered:
        made["metadata"]["namespace"] = namespace
    return rendered


def secret_placeholders(run: TrainingRun) -> list[Object]:
    """The Secrets of a run, without what they hold."""
    name = run.metadata.name
    secrets = [names.run_key_secret(name), names.run_key_secret(name, 2), names.roster_secret(name)]
    secrets += [names.role_secret(name, role) for role in ROLES]
    secrets += [names.island_secret(name, island) for island in names.island_names(island_count(run))]
    secrets += [names.ticket_secret(names.pool(name, pool.name)) for pool in run.spec.inference_pools]
    if run.spec.ui is not None:
        secrets.append(names.ui_token(name))
    return [child("Secret", secret, name, "keys", {"type": "Opaque"}) for secret in secrets]


class PlainDumper(yaml.SafeDumper):
    """Writes no anchors: the output is to be read and to be applied."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(objects: list[Object]) -> str:
    """Objects as one YAML stream."""
    return yaml.dump_all(objects, Dumper=PlainDumper, sort_keys=False, width=120, explicit_start=True)
