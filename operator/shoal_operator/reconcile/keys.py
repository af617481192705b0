"""Makes a run's keys once, as Secrets: run key, a key for each trusted role, run secret, admin's token, tickets of pools, the page's token; derives
the roster.

Private keys leave this module only into Secrets; builders get the public keys. A Secret that exists is never written again: new
keys would exclude every node and invalidate every signature of the run.
"""

import base64
import secrets
from collections.abc import Mapping

from shoal.contracts.pools import pool_ticket
from shoal.contracts.roster import ROLES, Role, Roster
from shoal.contracts.signed import sign
from shoal.crypto.keys import PrivateKey
from shoal_operator.children import RunIdentity, names
from shoal_operator.children.workloads import child
from shoal_operator.engine.cluster import Cluster, ClusterError, Object
from shoal_operator.reconcile.common import owned, refuse_anothers

RUN_KEY = "run.pem"
ROLE_KEY = "role.pem"
ISLAND_KEY = "island.pem"
RUN_SECRET = "run_secret"  # noqa: S105 - the name of the entry
ADMIN_TOKEN = "admin_token"  # noqa: S105 - the name of the entry
"""Token of a run's admin for the orchestrator (docs/nodes.md)."""
TICKET = "ticket"
UI_TOKEN = "token"  # noqa: S105 - the name of the entry
"""Token of a browser for the page of the run (docs/ui.md)."""
RUN_SECRET_BYTES = 32
"""Beacons and upload grants are HMAC-SHA-256 under this secret; it is as long as the hash."""


def ensure_identity(cluster: Cluster, owner: Object, islands: int) -> RunIdentity:
    """The public identity of a run of this many islands (0: of one trainer), its Secrets made where they are missing.

    Raises `ClusterError` when one cannot be read.
    """
    run = owner["metadata"]["name"]
    run_key = _key(_ensure(cluster, owner, names.run_key_secret(run), RUN_KEY), RUN_KEY)
    public: dict[Role, str] = {}
    for role in ROLES:
        public[role] = _key(_ensure(cluster, owner, names.role_secret(run, role), ROLE_KEY), ROLE_KEY).public
    peers = {
        name: _key(_ensure(cluster, owner, names.island_secret(run, name), ISLAND_KEY), ISLAND_KEY).public
        for name in names.island_names(islands)
    }
    return RunIdentity(run_key=run_key.public, roster=sign(Roster(run=run, keys=public), run_key), islands=peers)


def ensure_tickets(cluster: Cluster, owner: Object, pools: Mapping[str, str]) -> None:
    """Create the missing tickets of pools. `pools`: name of the pool by name of its object."""
    run = owner["metadata"]["name"]
    for pool_object, pool in pools.items():
        name = names.ticket_secret(pool_object)
        if (found := cluster.get("Secret", name)) is not None:
            refuse_anothers(found, owner)
            continue
        orchestrator = _ensure(cluster, owner, names.role_secret(run, "orchestrator"), ROLE_KEY)
        ticket = pool_ticket(base64.b64decode(orchestrator["data"][RUN_SECRET]), pool)
        content = {"type": "Opaque", "immutable": True, "data": _encoded({TICKET: ticket.hex().encode()})}
        cluster.apply(owned(child("Secret", name, run, "keys", content), owner, cluster.namespace))


def ensure_ui_token(cluster: Cluster, owner: Object) -> None:
    """Create the token of the run's page if it is missing. After deleting it, restart the page's pod."""
    run = owner["metadata"]["name"]
    name = names.ui_token(run)
    if (found := cluster.get("Secret", name)) is not None:
        refuse_anothers(found, owner)
        return
    token = secrets.token_hex(RUN_SECRET_BYTES).encode()
    content = {"type": "Opaque", "immutable": True, "data": _encoded({UI_TOKEN: token})}
    cluster.apply(owned(child("Secret", name, run, "keys", content), owner, cluster.namespace))


def _ensure(cluster: Cluster, owner: Object, name: str, entry: str) -> Object:
    """The Secret of this name, created if it does not exist."""
    if (found := cluster.get("Secret", name)) is not None:
        # Keys of an earlier run are collected with it: a run that began with them would soon be without.
        refuse_anothers(found, owner)
        return found
    run = owner["metadata"]["name"]
    data = {entry: PrivateKey.generate().to_pem()}
    if name == names.role_secret(run, "orchestrator"):
        # Hex, because a reader may strip white space from a file.
        data[RUN_SECRET] = secrets.token_hex(RUN_SECRET_BYTES).encode()
        data[ADMIN_TOKEN] = secrets.token_hex(RUN_SECRET_BYTES).encode()
    content = {"type": "Opaque", "immutable": True, "data": _encoded(data)}
    return cluster.apply(owned(child("Secret", name, run, "keys", content), owner, cluster.namespace))


def _encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


def _key(secret: Object, entry: str) -> PrivateKey:
    name = secret["metadata"]["name"]
    try:
        return PrivateKey.from_pem(base64.b64decode(secret["data"][entry]))
    except (KeyError, ValueError) as error:
        # The error's own text may quote the key.
        raise ClusterError(
            f"Secret {name}: {entry} is not an Ed25519 private key in PEM ({type(error).__name__}); restore it from a backup, "
            "or delete the run and start a new one"
        ) from None
