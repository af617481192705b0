"""A container's command line and environment, as Kubernetes would compute them: `$(VAR)` expansion, `fieldRef`, literal values.

Pure, except for the look-up of Secrets. Called by `pods` when a container is started.
"""

import base64
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from shoal.contracts.machine import OWNERS_CHOICES
from shoal_operator.children.trainer import FIXED_PORT, OWN_CHOICE

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


class UnsupportedField(ValueError):
    """An object uses something that the cluster on this machine does not have; the message names object and field."""


Lookup = Callable[[str, str], Mapping[str, Any] | None]
"""(kind, name) -> object, or None when it does not exist (yet)."""


class NotThere(LookupError):
    """A Secret, ConfigMap or claim that a pod needs does not exist yet: the pod waits, as on a cluster."""


def contents(kind: str, name: str, lookup: Lookup, where: str) -> dict[str, bytes]:
    """What a Secret or ConfigMap holds, by key; raises `NotThere`."""
    found = lookup(kind, name)
    if found is None:
        raise NotThere(f"{where}: waits for {kind} {name}")
    data = found.get("data", {})
    return {key: base64.b64decode(value) if kind == "Secret" else value.encode() for key, value in data.items()}


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value; an unknown name stays as it is, `$$` becomes `$` (Kubernetes' rules for command and args)."""

    def value(found: re.Match[str]) -> str:
        if found.group(0) == "$$":
            return "$"
        return variables.get(found.group(1), found.group(0))

    return _REFERENCE.sub(value, text)


def environment(
    container: Mapping[str, Any],
    *,
    home: str,
    address: str,
    pod: str,
    path: str,
    caller: Mapping[str, str],
    lookup: Lookup,
    where: str,
) -> dict[str, str]:
    """The whole environment of a container: a minimal base, `envFrom`, then the container's own variables in order.

    Of the caller's environment only `OWNERS_CHOICES` and `PATH` are passed on: it may hold secrets, and a pod would not have it.
    `SHOAL_HOME` and `SHOAL_BIND` are the pod's folder and address here, whatever the object says for a cluster.
    Raises `NotThere` and `UnsupportedField`.
    """
    here = {"SHOAL_HOME": home, "SHOAL_BIND": address, "SHOAL_POD": pod}
    fields = {"metadata.name": pod, "status.podIP": address}
    scratch = f"{home}/tmp"  # noqa: S108 - a folder of the pod's own
    made = {name: caller[name] for name in OWNERS_CHOICES if name in caller}
    for source in container.get("envFrom", []):
        made |= _of_object(source, lookup, where)
    made |= {"PATH": path, "HOME": scratch, "TMPDIR": scratch, "LANG": "C.UTF-8"}
    for entry in container.get("env", []):
        name = entry["name"]
        if name in here:
            continue
        if "valueFrom" not in entry:
            made[name] = expand(str(entry.get("value", "")), made | here)
            continue
        source = entry["valueFrom"]
        field = source.get("fieldRef", {}).get("fieldPath")
        if set(source) == {"secretKeyRef"}:
            if (value := _of_key(source["secretKeyRef"], lookup, where)) is not None:
                made[name] = value
        elif field in fields:
            made[name] = fields[field]
        else:
            raise UnsupportedField(
                f"{where}: env {name} takes its value from {source}; here only {sorted(fields)} and secretKeyRef"
            )
    return made | here


def _of_object(source: Mapping[str, Any], lookup: Lookup, where: str) -> dict[str, str]:
    """The variables of one entry of `envFrom`."""
    kind, field = ("Secret", "secretRef") if "secretRef" in source else ("ConfigMap", "configMapRef")
    wanted = source[field]
    if wanted.get("optional") and lookup(kind, wanted["name"]) is None:
        return {}
    prefix = source.get("prefix", "")
    return {prefix + key: value.decode() for key, value in contents(kind, wanted["name"], lookup, where).items()}


def _of_key(wanted: Mapping[str, Any], lookup: Lookup, where: str) -> str | None:
    """The value of a `secretKeyRef`; None: it is optional and not there."""
    name, key = wanted["name"], wanted["key"]
    if wanted.get("optional") and lookup("Secret", name) is None:
        return None
    data = contents("Secret", name, lookup, where)
    if key not in data and not wanted.get("optional"):
        raise NotThere(f"{where}: waits for key {key} in Secret {name}")
    return data[key].decode() if key in data else None


def command_line(container: Mapping[str, Any], variables: Mapping[str, str], where: str) -> list[str]:
    """`command` and `args` with `$(VAR)` expanded; `python` is the interpreter that runs us, so that both are of one installation.

    torchrun chooses the port of its store: pods share their ports here, and trainers of two runs would both need the fixed one.
    """
    words = [expand(str(word), variables) for word in [*container.get("command", []), *container.get("args", [])]]
    if not words or not container.get("command"):
        raise UnsupportedField(
            f"{where}: has no command; a local run cannot read an image's entry point, so the builder must give the command"
        )
    if words[0] == "python":
        words[0] = sys.executable
    at = next((at for at in range(len(words)) if tuple(words[at : at + len(FIXED_PORT)]) == FIXED_PORT), None)
    return words if at is None else [*words[:at], *OWN_CHOICE, *words[at + len(FIXED_PORT) :]]
