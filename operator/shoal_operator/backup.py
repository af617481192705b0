"""A backup of a run's spec and keys, from what `kubectl get` printed: `python -m shoal_operator.backup < FILE > BACKUP`.

In: the TrainingRun and its Secrets as JSON, each by itself or in lists, one after the other. Out: one List for `kubectl create` in any namespace:
Secrets first, then the run, suspended, and marked as restored if it was prepared. It is written only if the keys are all there and are the run's. The
store is copied by other means. Pure except for `main`. Exit codes: 0 written, 2 the input is not a run with its keys.
"""

import argparse
import base64
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from shoal.contracts.roster import ROLES, Roster, verified_roster
from shoal.contracts.signed import BadSignature, Signed
from shoal.crypto.keys import PrivateKey
from shoal_operator.api import TrainingRun
from shoal_operator.children import names
from shoal_operator.engine.cluster import Object
from shoal_operator.engine.conditions import is_true
from shoal_operator.reconcile.keys import ADMIN_TOKEN, ROLE_KEY, ROSTER, RUN_SECRET

EXAMPLE = """example (docs/operator.md has the whole procedure):
  (umask 077; python -m shoal_operator.backup < found.json > sums.json)
"""


class NotARun(ValueError):
    """What was read is not one run with all its keys; the text says what is missing or wrong, and what to do."""


def documents(text: str) -> Iterator[Object]:
    """Every object of JSON documents that follow each other, those of lists too. Raises NotARun."""
    decoder, at, text = json.JSONDecoder(), 0, text.strip()
    while at < len(text):
        try:
            found, at = decoder.raw_decode(text, at)
        except ValueError:
            raise NotARun("the input is not JSON: give what `kubectl get -o json` prints") from None
        while at < len(text) and text[at].isspace():
            at += 1
        each = found.get("items") if isinstance(found, dict) and "items" in found else [found]
        for one in each if isinstance(each, list) else [each]:
            if not isinstance(one, dict) or not isinstance(one.get("metadata"), dict) or "name" not in one["metadata"]:
                raise NotARun(
                    "the input holds something that is no object of Kubernetes: give what `kubectl get -o json` prints"
                )
            yield one


def backup(found: Sequence[Object]) -> tuple[Object, list[str]]:
    """The List to keep, and remarks for the person who keeps it. Raises NotARun."""
    runs = [each for each in found if each.get("kind") == "TrainingRun"]
    if len(runs) != 1:
        raise NotARun(f"the input holds {len(runs)} TrainingRuns: give exactly one")
    live = runs[0]
    run = live["metadata"]["name"]
    try:
        TrainingRun.model_validate({key: value for key, value in live.items() if key != "status"})
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise NotARun(f"TrainingRun {run}: this release does not know {where}: use that of the operator") from None
    secrets = {
        each["metadata"]["name"]: each
        for each in found
        if each.get("kind") == "Secret"
        and (each["metadata"].get("labels") or {}).get(names.RUN_LABEL) == run
        and names.MADE_OF_ANNOTATION not in (each["metadata"].get("annotations") or {})  # of what was made there
    }
    remarks = _check_keys(run, secrets, live.get("status", {}).get("runPublicKey"))
    items = [*(_kept(secret) for _, secret in sorted(secrets.items())), _kept(live)]
    if is_true(live, "Prepared") or names.RESTORED_ANNOTATION in live["metadata"].get("annotations", {}):
        items[-1]["metadata"]["annotations"] = {names.RESTORED_ANNOTATION: "true"}
    items[-1]["spec"] = {**live["spec"], "suspend": True}
    return {"apiVersion": "v1", "kind": "List", "items": items}, remarks


def _check_keys(run: str, secrets: Mapping[str, Object], shown: str | None) -> list[str]:
    """Require every key by which the run goes on; returns what the backup lacks and may lack."""
    try:
        roster = Signed[Roster].from_json(_entry(secrets, names.roster_secret(run), ROSTER))
        first = roster.document.run_keys(roster.signer)[0]
        known = verified_roster(roster, first)
    except (BadSignature, ValidationError) as error:
        raise NotARun(f"Secret {names.roster_secret(run)}: its roster is not sound ({type(error).__name__})") from None
    if known.run != run or (shown and shown != first):
        raise NotARun(
            f"Secret {names.roster_secret(run)} is of another run than {run}: back up what IdentityLost names first"
        )
    for role in ROLES:
        name = names.held_secret(run, known, role)
        if _public(secrets, name, ROLE_KEY) != known.keys[role]:
            raise NotARun(f"Secret {name} has another key than the run's roster")
        for entry in (RUN_SECRET, ADMIN_TOKEN) if role == "orchestrator" else ():
            _entry(secrets, name, entry)
    number = 1 + len(known.changes_of("run"))
    return [
        f"Secret {held} is not in it: keep it where it is, for without it no key can be replaced"
        for held in (names.run_key_secret(run, number), names.run_key_secret(run, number + 1))
        if held not in secrets
    ]


def _public(secrets: Mapping[str, Object], name: str, entry: str) -> str:
    try:
        return PrivateKey.from_pem(_entry(secrets, name, entry)).public
    except ValueError as error:
        if isinstance(error, NotARun):
            raise
        raise NotARun(f"Secret {name}: {entry} is not a private key") from None


def _entry(secrets: Mapping[str, Object], name: str, entry: str) -> bytes:
    if name not in secrets:
        raise NotARun(f"Secret {name} is missing: give all Secrets with the label {names.RUN_LABEL}")
    try:
        return base64.b64decode(secrets[name]["data"][entry], validate=True)
    except (KeyError, TypeError, ValueError):
        raise NotARun(f"Secret {name} has no readable {entry}") from None


def _kept(live: Object) -> Object:
    """An object without what ties it to its namespace, its owner and this moment."""
    metadata: dict[str, Any] = {key: live["metadata"][key] for key in ("name", "labels") if key in live["metadata"]}
    rest: Object = {key: live[key] for key in ("type", "immutable", "data") if key in live}
    return {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": metadata, **rest}


def _for_us_alone(output: int) -> None:
    """A shell may have made the file that it writes into readable for everybody. Raises NotARun where it must stay so."""
    found = os.fstat(output)
    if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
        try:
            os.fchmod(output, 0o600)
        except OSError:
            raise NotARun("others can read the file of the output: write into one of your own") from None


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(
        prog="python -m shoal_operator.backup",
        description="Reads a TrainingRun and its Secrets as JSON, and prints a backup of spec and keys for `kubectl create`. It holds private keys.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(arguments)
    try:
        made, remarks = backup(list(documents(sys.stdin.read())))
        _for_us_alone(sys.stdout.fileno())
    except NotARun as error:
        print(f"shoal_operator.backup: {error}", file=sys.stderr)
        return 2
    for remark in remarks:
        print(f"shoal_operator.backup: {remark}", file=sys.stderr)
    json.dump(made, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
