"""A container's command line and environment, as Kubernetes would compute them: `$(VAR)` expansion, `fieldRef`, literal values.

Pure. Called by `pods` when a container is started.
"""

import re
import sys
from collections.abc import Mapping
from typing import Any

from shoal_operator.children.trainer import FIXED_PORT, OWN_CHOICE

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


class UnsupportedField(ValueError):
    """An object uses something that the cluster on this machine does not have; the message names object and field."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value; an unknown name stays as it is, `$$` becomes `$` (Kubernetes' rules for command and args)."""

    def value(found: re.Match[str]) -> str:
        if found.group(0) == "$$":
            return "$"
        return variables.get(found.group(1), found.group(0))

    return _REFERENCE.sub(value, text)


def environment(
    container: Mapping[str, Any], *, home: str, address: str, pod: str, path: str, where: str
) -> dict[str, str]:
    """The whole environment of a container: a minimal base, then the container's own variables in order.

    Nothing of the caller's environment is passed on but `PATH`: it may hold secrets, and a pod would not have it.
    `SHOAL_HOME` and `SHOAL_BIND` are the pod's folder and address here, whatever the object says for a cluster.
    """
    here = {"SHOAL_HOME": home, "SHOAL_BIND": address, "SHOAL_POD": pod}
    fields = {"metadata.name": pod, "status.podIP": address}
    scratch = f"{home}/tmp"  # noqa: S108 - a folder of the pod's own
    made = {"PATH": path, "HOME": scratch, "TMPDIR": scratch, "LANG": "C.UTF-8"}
    for entry in container.get("env", []):
        name = entry["name"]
        if name in here:
            continue
        if "valueFrom" in entry:
            field = entry["valueFrom"].get("fieldRef", {}).get("fieldPath")
            if field not in fields:
                raise UnsupportedField(
                    f"{where}: env {name} takes its value from {entry['valueFrom']}; here only {sorted(fields)}"
                )
            made[name] = fields[field]
        else:
            made[name] = expand(str(entry.get("value", "")), made | here)
    return made | here


def command_line(container: Mapping[str, Any], variables: Mapping[str, str], where: str) -> list[str]:
    """`command` and `args` with `$(VAR)` expanded; `python` is the interpreter that runs us, so that both are of one installation.

    torchrun chooses the port of its store: pods share their ports here, and trainers of two runs would both want the fixed one.
    """
    words = [expand(str(word), variables) for word in [*container.get("command", []), *container.get("args", [])]]
    if not words or not container.get("command"):
        raise UnsupportedField(
            f"{where}: has no command; an image's own entry point is not known here, so builders name it"
        )
    if words[0] == "python":
        words[0] = sys.executable
    at = next((at for at in range(len(words)) if tuple(words[at : at + len(FIXED_PORT)]) == FIXED_PORT), None)
    return words if at is None else [*words[:at], *OWN_CHOICE, *words[at + len(FIXED_PORT) :]]
