"""Makes a run's keys as Secrets: run key and the one after it, a key for each trusted role, run secret, admin's token, tickets of pools, the page's
token. Replaces keys where the spec asks for it, and keeps the roster.

Private keys leave this module only into Secrets; builders get the public keys. A Secret that exists is never written again, except for that with the
roster: a key is changed by writing it, in one piece. Every new key has a Secret of its own, made before. So a stop between any two steps leaves
either the old roster or the new one, and the next reconcile continues. Secrets of replaced keys are deleted when no pod needs them any more.
"""

import base64
import secrets
from collections.abc import Mapping

from pydantic import ValidationError

from shoal.contracts.newer import from_newer_json
from shoal.contracts.pools import pool_ticket
from shoal.contracts.roster import (
    MOST_CHANGES,
    ROLES,
    KeyChange,
    KeyHolder,
    Role,
    Roster,
    first_roster,
    key_digest,
    next_run_key,
    verified_roster,
)
from shoal.contracts.run import NodeConfig, RunConfig
from shoal.contracts.signed import BadSignature, Signed, sign
from shoal.contracts.trust import OVERLAP_SECONDS
from shoal.crypto.keys import PrivateKey
from shoal_operator.api.keys import KeysSpec, KeyWish
from shoal_operator.children import RunIdentity, names
from shoal_operator.children.workloads import child
from shoal_operator.engine.cluster import Cluster, ClusterError, Object
from shoal_operator.reconcile.common import owned, owned_by, refuse_anothers

RUN_KEY = "run.pem"
ROLE_KEY = "role.pem"
ISLAND_KEY = "island.pem"
ROSTER = "roster.json"
RUN_SECRET = "run_secret"  # noqa: S105 - the name of the entry
ADMIN_TOKEN = "admin_token"  # noqa: S105 - the name of the entry
"""Token of a run's admin for the orchestrator (docs/nodes.md)."""
TICKET = "ticket"
UI_TOKEN = "token"  # noqa: S105 - the name of the entry
"""Token of a browser for the page of the run (docs/ui.md)."""
RUN_SECRET_BYTES = 32
"""Beacons and upload grants are HMAC-SHA-256 under this secret; it is as long as the hash."""


class IdentityLost(ClusterError):
    """A key of a run that has begun is gone, or is another one. Nothing of the run is changed until it is put back."""

    condition = "IdentityLost"


def ensure_identity(cluster: Cluster, owner: Object, islands: int, wanted: KeysSpec | None = None) -> RunIdentity:
    """The public identity of a run of this many islands (0: of one trainer), its Secrets made where they are missing, and keys replaced as wanted.

    Raises `ClusterError` when one cannot be read, or a Secret of a run that has begun is gone.
    """
    run = owner["metadata"]["name"]
    roster = _kept_roster(cluster, owner)
    if roster is None:
        _require_first_keys(cluster, owner)
        roster = _first_roster(cluster, owner)
        _compare(cluster, owner, roster)
        _keep(cluster, owner, roster)
    else:
        _compare(cluster, owner, roster)
        _require_keys(cluster, owner, roster, wanted)
    changed = _changed(cluster, owner, roster, wanted or KeysSpec())
    if changed is not roster:
        _keep(cluster, owner, changed)
    _delete_replaced(cluster, changed.document)
    peers = {
        name: _key(_ensure(cluster, owner, names.island_secret(run, name), ISLAND_KEY), ISLAND_KEY).public
        for name in names.island_names(islands)
    }
    return RunIdentity(first_roster(changed).signer, changed, peers, _run_keys_away(cluster, changed.document))


def ensure_tickets(cluster: Cluster, owner: Object, pools: Mapping[str, str], identity: RunIdentity) -> None:
    """Create the missing tickets of pools. `pools`: name of the pool by name of its object."""
    for pool_object, pool in pools.items():
        name = names.ticket_secret(pool_object)
        if _find(cluster, owner, name) is not None:
            continue
        orchestrator = _get(
            cluster, owner, names.held_secret(owner["metadata"]["name"], identity.roster.document, "orchestrator")
        )
        ticket = pool_ticket(base64.b64decode(orchestrator["data"][RUN_SECRET]), pool)
        _create(cluster, owner, name, {TICKET: ticket.hex().encode()})


def ensure_ui_token(cluster: Cluster, owner: Object) -> None:
    """Create the token of the run's page if it is missing. After deleting it, restart the page's pod."""
    name = names.ui_token(owner["metadata"]["name"])
    if _find(cluster, owner, name) is not None:
        return
    _create(cluster, owner, name, {UI_TOKEN: secrets.token_hex(RUN_SECRET_BYTES).encode()})


def _first_roster(cluster: Cluster, owner: Object) -> Signed[Roster]:
    """That of a run without one: a new run, or one that an operator of 0.2.0 began, whose roster is made as it was then."""
    run = owner["metadata"]["name"]
    first, following = names.run_key_secret(run), names.run_key_secret(run, 2)
    if cluster.get("Secret", first) is None:
        _ensure(
            cluster, owner, following, RUN_KEY
        )  # before the first, whose being there alone says that the run is an old one
    run_key = _key(_ensure(cluster, owner, first, RUN_KEY), RUN_KEY)
    fixed = cluster.get("Secret", following)
    public: dict[Role, str] = {}
    for role in ROLES:
        public[role] = _key(_ensure(cluster, owner, names.role_secret(run, role), ROLE_KEY), ROLE_KEY).public
    digest = key_digest(_key(fixed, RUN_KEY).public) if fixed is not None else None
    return sign(Roster(run=run, keys=public, next_run_key=digest), run_key)


def _run_keys_said(cluster: Cluster, owner: Object) -> list[str]:
    """First run key of the run, as its configuration, what nodes join by, and its status each have it."""
    run, said = owner["metadata"]["name"], []
    kinds: list[tuple[str, str, type[RunConfig] | type[NodeConfig]]] = [
        (names.config(run), "run.json", RunConfig),
        (names.join(run), "node.json", NodeConfig),
    ]
    for name, entry, model in kinds:
        found = cluster.get("ConfigMap", name)
        if found is None or not owned_by(found, owner):
            continue
        try:
            said.append(from_newer_json(model, found.get("data", {}).get(entry, "")).run_key)
        except (ValidationError, ValueError):
            continue  # it is written anew
    shown = owner.get("status", {}).get("runPublicKey")
    return [*said, shown] if shown else said


def _compare(cluster: Cluster, owner: Object, roster: Signed[Roster]) -> None:
    """Raise IdentityLost for a roster of another run key than all that the run has said. One record alone may have been written over."""
    run, key, said = owner["metadata"]["name"], first_roster(roster).signer, _run_keys_said(cluster, owner)
    if said and key not in said:
        raise IdentityLost(
            f"Secrets {names.roster_secret(run)} and {names.run_key_secret(run)} have run key {key[:16]}, but the run began with {said[0][:16]}:"
            " restore both from a backup; every signature of the run would be void"
        )


def _require_first_keys(cluster: Cluster, owner: Object) -> None:
    """Of a run that has begun and whose roster is lost: its first keys must still be there. None is made in their place.

    A run has begun once its status has its key, or a child exists that is made after the keys.
    """
    run = owner["metadata"]["name"]
    after = (
        ("Job", names.prepare(run)),
        ("Deployment", names.orchestrator(run)),
        ("PersistentVolumeClaim", names.store(run)),
    )
    made = [cluster.get(kind, name) for kind, name in after]
    # A store that an earlier run of this name left behind is its history: other keys would write another one into it.
    retained = (made[2] or {}).get("metadata", {}).get("annotations", {})
    begun = (
        owner.get("status", {}).get("runPublicKey")
        or names.RETAIN_ANNOTATION in retained
        or any(each is not None and owned_by(each, owner) for each in made)
    )
    if not begun:
        return
    needed = [names.run_key_secret(run), *(names.role_secret(run, role) for role in ROLES)]
    lost = [name for name in needed if _find(cluster, owner, name) is None]
    if lost:
        raise IdentityLost(
            f"Secret {names.roster_secret(run)} is gone, and with it {', '.join(lost)}, of a run that has begun: restore them from a backup,"
            " or delete the run and start a new one"
            + (
                f" after PersistentVolumeClaim {names.store(run)}, which keeps its store"
                if names.RETAIN_ANNOTATION in retained
                else ""
            )
        )


def _kept_roster(cluster: Cluster, owner: Object) -> Signed[Roster] | None:
    """The roster as it was written last; that of the run's configuration where its Secret was lost."""
    run = owner["metadata"]["name"]
    name = names.roster_secret(run)
    found = _find(cluster, owner, name)
    try:
        if found is not None:
            return Signed[Roster].from_json(base64.b64decode(found["data"][ROSTER]))
        config = cluster.get("ConfigMap", names.config(run))
        text = (config or {}).get("data", {}).get("run.json")
        join = None
        if config is None or text is None:
            join = cluster.get("ConfigMap", names.join(run))
            text = (join or {}).get("data", {}).get("node.json")
        if text is None:
            return None
        refuse_anothers(join or config or {}, owner)
        told = from_newer_json(RunConfig, text) if join is None else from_newer_json(NodeConfig, text)
        roster = told.roster
    except (KeyError, ValidationError, ValueError) as error:
        raise ClusterError(
            f"Secret {name}: {ROSTER} is not readable ({type(error).__name__}); restore it from a backup"
        ) from None
    # Of a run of 0.2.0, and of one whose Secret was lost.
    _keep(cluster, owner, roster)
    return roster


def _require_keys(cluster: Cluster, owner: Object, signed: Signed[Roster], wanted: KeysSpec | None) -> None:
    """Every role's key must still be there, or be one that is to be replaced as leaked. A key is never made in the place of one that was lost."""
    roster = signed.document
    try:
        verified_roster(signed, first_roster(signed).signer)
    except BadSignature as error:
        raise ClusterError(f"Secret {names.roster_secret(roster.run)}: {error}; restore it from a backup") from None
    for role in ROLES:
        name = names.held_secret(roster.run, roster, role)
        if _find(cluster, owner, name) is None:
            wish = (wanted or KeysSpec()).wishes().get(role)
            if wish is not None and wish.leaked and wish.generation > 1 + len(roster.changes_of(role)):
                continue
            after = 2 + len(roster.changes_of(role))
            raise IdentityLost(
                f"Secret {name} with the {role}'s key is gone: restore it from a backup, or replace the key with"
                f" spec.keys.{role}: {{generation: {after}, leaked: true}}"
            )
        if _key(_get(cluster, owner, name), ROLE_KEY).public != roster.keys[role]:
            raise IdentityLost(f"Secret {name} has another key than the run's roster: restore it from a backup")


def _changed(cluster: Cluster, owner: Object, signed: Signed[Roster], wanted: KeysSpec) -> Signed[Roster]:
    """The roster with every key replaced that is to be; the same one where none is."""
    roster = signed.document
    due = {
        holder: wish for holder, wish in wanted.wishes().items() if wish.generation > 1 + len(roster.changes_of(holder))
    }
    if not due:
        return signed
    if len(roster.changes) + len(due) > MOST_CHANGES:
        raise ClusterError(
            f"spec.keys: a run has at most {MOST_CHANGES} changes of keys, and has {len(roster.changes)}"
        )
    signer = _run_key(cluster, owner, roster, 1 + len(roster.changes_of("run")))
    keys, changes = dict(roster.keys), list(roster.changes)
    last = changes[-1].document.unix if changes else 0.0
    unix = max(round(cluster.now().timestamp(), 3), last)
    for holder, wish in due.items():
        if holder == "run":
            change, key = _change_run_key(cluster, owner, roster, signer, unix, leaked=wish.leaked)
            changes.append(sign(change, signer))
            signer = key
        else:
            changes.append(_change_role_key(cluster, owner, roster, holder, wish, unix))
            keys[holder] = changes[-1].document.new
    begun = first_roster(signed)
    new = roster.model_copy(update={"keys": keys, "changes": changes, "first_signature": begun.signature})
    made = sign(new, signer)
    verified_roster(made, begun.signer)
    return made


def _change_role_key(
    cluster: Cluster, owner: Object, roster: Roster, role: Role, wish: KeyWish, unix: float
) -> Signed[KeyChange]:
    run, number = roster.run, len(roster.changes_of(role))
    old = cluster.get("Secret", names.role_secret(run, role, number + 1))
    kept: dict[str, bytes] = {}
    if role == "orchestrator":
        if old is None:
            raise ClusterError(
                f"Secret {names.role_secret(run, role, number + 1)} is gone, and with it the run secret, which beacons rest on:"
                " restore it from a backup"
            )
        kept[RUN_SECRET] = base64.b64decode(old["data"][RUN_SECRET])
        if not wish.leaked:
            kept[ADMIN_TOKEN] = base64.b64decode(old["data"][ADMIN_TOKEN])
    new = _key(_ensure(cluster, owner, names.role_secret(run, role, number + 2), ROLE_KEY, kept), ROLE_KEY)
    change = KeyChange(run=run, role=role, old=roster.keys[role], new=new.public, unix=unix, leaked=wish.leaked)
    if wish.leaked or old is None:
        return sign(change, new)
    return sign(change, _key(old, ROLE_KEY))


def _change_run_key(
    cluster: Cluster, owner: Object, roster: Roster, signer: PrivateKey, unix: float, *, leaked: bool
) -> tuple[KeyChange, PrivateKey]:
    """The change to the key that was fixed before, and that key. The one after it is made now."""
    number = 2 + len(roster.changes_of("run"))
    name = names.run_key_secret(roster.run, number)
    fixed = next_run_key(roster)
    if fixed is None:
        key = _key(_ensure(cluster, owner, name, RUN_KEY), RUN_KEY)
    else:
        key = _run_key(cluster, owner, roster, number)
        if key_digest(key.public) != fixed:
            raise ClusterError(f"Secret {name} is not the run key that was fixed before: restore the one that was kept")
    after = _key(_ensure(cluster, owner, names.run_key_secret(roster.run, number + 1), RUN_KEY), RUN_KEY)
    change = KeyChange(
        run=roster.run,
        role="run",
        old=signer.public,
        new=key.public,
        unix=unix,
        leaked=leaked,
        next_run_key=key_digest(after.public),
    )
    return change, key


def _run_key(cluster: Cluster, owner: Object, roster: Roster, number: int) -> PrivateKey:
    name = names.run_key_secret(roster.run, number)
    if _find(cluster, owner, name) is None:
        raise ClusterError(
            f"Secret {name} is needed to change a key and is not here: put it back from where it is kept"
        )
    return _key(_get(cluster, owner, name), RUN_KEY)


def _run_keys_away(cluster: Cluster, roster: Roster) -> tuple[str, ...]:
    """Secrets of the run key and of the one that is fixed after it, if they are not here. The run goes on without them; a key cannot be changed."""
    number = 1 + len(roster.changes_of("run"))
    needed = [number] if next_run_key(roster) is None else [number, number + 1]
    wanted = [names.run_key_secret(roster.run, each) for each in needed]
    return tuple(name for name in wanted if cluster.get("Secret", name) is None)


def _delete_replaced(cluster: Cluster, roster: Roster) -> None:
    """Delete the Secrets of replaced keys, once pods that had them are gone."""
    count: dict[KeyHolder, int] = {}
    for signed in roster.changes:
        change = signed.document
        number = count[change.role] = count.get(change.role, 0) + 1
        if cluster.now().timestamp() < change.unix + OVERLAP_SECONDS:
            continue
        run, role = roster.run, change.role
        name = names.run_key_secret(run, number) if role == "run" else names.role_secret(run, role, number)
        if cluster.get("Secret", name) is not None:
            cluster.delete("Secret", name)


def _keep(cluster: Cluster, owner: Object, roster: Signed[Roster]) -> None:
    run = owner["metadata"]["name"]
    content = {"type": "Opaque", "data": _encoded({ROSTER: roster.to_json()})}
    cluster.apply(owned(child("Secret", names.roster_secret(run), run, "keys", content), owner, cluster.namespace))


def _get(cluster: Cluster, owner: Object, name: str) -> Object:
    found = _find(cluster, owner, name)
    if found is None:
        raise IdentityLost(f"Secret {name} is gone: restore it from a backup")
    return found


def _find(cluster: Cluster, owner: Object, name: str) -> Object | None:
    """A Secret of the run, or None; one that lost its labels gets them back, because no watch shows it without.

    One request where the cache has none: for each Secret of a new run, and at each pass while one is missing.
    """
    found = cluster.get("Secret", name)
    if found is not None:
        # Keys of an earlier run are collected with it: a run that began with them would soon be without.
        refuse_anothers(found, owner)
        return found
    found = cluster.read_foreign("Secret", name)
    if found is None or found["metadata"].get("deletionTimestamp"):
        return None
    refuse_anothers(found, owner)
    run = owner["metadata"]["name"]
    labels = found["metadata"].get("labels") or {}
    if not owned_by(found, owner) and labels.get(names.RUN_LABEL) != run:
        raise ClusterError(
            f"Secret {name} is not this run's: delete or rename it, or give it the label {names.RUN_LABEL}: {run}"
        )
    content: Object = {key: found[key] for key in ("type", "immutable", "data") if key in found}
    return cluster.apply(owned(child("Secret", name, run, "keys", content), owner, cluster.namespace))


def _ensure(
    cluster: Cluster, owner: Object, name: str, entry: str, further: Mapping[str, bytes] | None = None
) -> Object:
    """The Secret of this name, created if it does not exist."""
    if (found := _find(cluster, owner, name)) is not None:
        return found
    data = {entry: PrivateKey.generate().to_pem(), **(further or {})}
    if name.startswith(names.role_secret(owner["metadata"]["name"], "orchestrator")):
        # Hex, because a reader may strip white space from a file.
        for secret in (RUN_SECRET, ADMIN_TOKEN):
            data.setdefault(secret, secrets.token_hex(RUN_SECRET_BYTES).encode())
    return _create(cluster, owner, name, data)


def _create(cluster: Cluster, owner: Object, name: str, data: Mapping[str, bytes]) -> Object:
    content = {"type": "Opaque", "immutable": True, "data": _encoded(data)}
    return cluster.apply(
        owned(child("Secret", name, owner["metadata"]["name"], "keys", content), owner, cluster.namespace)
    )


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
