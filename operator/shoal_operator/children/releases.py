"""Children as an earlier release made them, and edits on top of them: a three-way merge of what it made, what this release makes of the same inputs,
and what this release makes now. Pure; `reconcile/releases.py` decides which release a child is of.

What a release made is kept with its inputs in one Secret an owner (ADR 0092). Cost: about 8 KiB a run and 4 KiB a pool there; to read one
about 2 ms, which is remembered.
"""

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson
from pydantic import TypeAdapter
from pydantic_core import from_json

from shoal_operator.api.base import quantity_value
from shoal_operator.api.pod_rules import VOLUME_SOURCES
from shoal_operator.children import names
from shoal_operator.children.workloads import WITH_PODS, child, claim_templates_of, digest, template_of
from shoal_operator.engine.cluster import CHILD_KINDS, MAYBE_KINDS, Object
from shoal_operator.engine.kinds import SCALED_KINDS

Inputs = TypeVar("Inputs")
ChildKey = tuple[str, str]
"""Kind and name; all attempts of a trainer are one child."""

MOST_BYTES = 2 << 20
"""Of a record when it is unpacked: a run with 16 pools has 300 KiB. Who writes Secrets in one namespace shares the operator with all others."""
OF_THE_SPEC = (
    "hostNetwork", "hostPID", "hostIPC", "nodeName", "serviceAccount", "serviceAccountName",
)  # fmt: skip
"""Fields of a pod that a record may have only as its inputs ask for them: the merge then gives what the run's spec says now."""
POD_CONTEXT = frozenset(
    {
        "runAsNonRoot",
        "runAsUser",
        "runAsGroup",
        "fsGroup",
        "fsGroupChangePolicy",
        "supplementalGroups",
        "seccompProfile",
    }
)
CONTAINER_CONTEXT = frozenset(
    {"allowPrivilegeEscalation", "capabilities", "readOnlyRootFilesystem", "runAsNonRoot", "seccompProfile"}
)
SECCOMP = {"type": "RuntimeDefault"}


class NoRecord(ValueError):
    """A record cannot be read, or is not what an operator wrote."""


@dataclass(frozen=True)
class Builder(Generic[Inputs]):
    """How an owner's children are made: what they are made of, and by which function."""

    inputs: TypeAdapter[Inputs]
    build: Callable[[Inputs], Sequence[Object]]

    def text(self, inputs: Inputs) -> bytes:
        """The inputs as JSON, the same for the same ones. What is not set is left out: an earlier release then reads them too."""
        return self.inputs.dump_json(inputs, by_alias=True, exclude_unset=True)

    def record(self, inputs: Inputs, text: bytes, with_digests: Callable[[Object], Object]) -> str:
        """Base64 of what this release makes of the inputs, with them, and with the digests of its images."""
        children = json.dumps(
            [with_digests(each) for each in self.build(inputs)], sort_keys=True, separators=(",", ":")
        )
        document = b'{"children":%b,"inputs":%b}' % (children.encode(), text)
        return base64.b64encode(zlib.compress(document, 9)).decode()

    def read(self, release: str, record: str, owner: str, run: str) -> "KeptChildren":
        """What another release made for an owner of this name, from its record. Raises NoRecord."""
        try:
            unpacker = zlib.decompressobj()
            text = unpacker.decompress(base64.b64decode(record, validate=True), MOST_BYTES)
            document = from_json(text)  # of any depth: json would end the recursion by another error
            was, inputs = by_key(document["children"]), self.inputs.validate_python(document["inputs"])
            base = by_key(self.build(inputs))
            for key, each in was.items():
                _require_ours(each, base.get(key), owner, run)
            orjson.dumps(document["children"])  # what cannot be written, such as a number beyond 64 bits
        except Exception as error:
            # Whatever it is: the text, and so what builders make of its inputs, may be of anybody who writes Secrets.
            raise NoRecord(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}") from None
        return KeptChildren(release, was, base)


@dataclass(frozen=True)
class KeptChildren:
    """An earlier release's children: as it made them (`was`), and as this release makes them of the same inputs (`base`)."""

    release: str
    was: Mapping[ChildKey, Object]
    base: Mapping[ChildKey, Object]

    def child(self, wanted: Object) -> Object | None:
        """The child that this release makes as `wanted` now, as the other makes it; None for one that only this release has."""
        was, base = self.was.get(key_of(wanted)), self.base.get(key_of(wanted))
        if was is not None:
            found: Object = merged(was, base or {}, wanted)
            return found
        return of_release(wanted, self.release) if base is None else None

    def others(self, wanted: Iterable[Object]) -> list[Object]:
        """Children that only the other release has."""
        there = {key_of(each) for each in wanted}
        return [each for key, each in self.was.items() if key not in self.base and key not in there]


def key_of(made: Object) -> ChildKey:
    labels = made["metadata"].get("labels", {})
    attempt = made["kind"] == "Job" and names.ATTEMPT_LABEL in labels
    return made["kind"], labels[names.COMPONENT_LABEL] if attempt else made["metadata"]["name"]


def by_key(children: Iterable[Object]) -> dict[ChildKey, Object]:
    return {key_of(each): each for each in children}


def merged(was: Any, base: Any, wanted: Any) -> Any:
    """`was` with what differs between `base` and `wanted`. Lists whose items have names are merged by them, others by what each item became: a next
    attempt's name takes the place of the one before in a command that has other words in each release."""
    if wanted == base:
        return was
    if isinstance(was, dict) and isinstance(wanted, dict):
        base = base if isinstance(base, dict) else {}
        made = {key: value for key, value in was.items() if key in wanted or key not in base}
        for key, value in wanted.items():
            if key not in base or key in was or value != base[key]:
                made[key] = merged(was.get(key), base.get(key), value)
        return made
    if isinstance(was, list) and isinstance(base, list) and isinstance(wanted, list):
        keyed = [_by_name(each) for each in (was, base, wanted)]
        if all(each is not None for each in keyed):
            found = merged(*keyed)
            return list(found.values())
        if len(base) == len(wanted):
            became = [items for items in zip(base, wanted, strict=True) if items[0] != items[1]]
            if all(old in was for old, _ in became):
                return [next((new for old, new in became if old == each), each) for each in was]
        if len(was) == len(base) == len(wanted):
            return [merged(*items) for items in zip(was, base, wanted, strict=True)]
    return wanted


def _by_name(items: list[Any]) -> dict[str, Any] | None:
    """Items of a list by their names, or None where not each has one of its own."""
    found = {each["name"]: each for each in items if isinstance(each, dict) and "name" in each}
    return found if items and len(found) == len(items) else None


def of_release(made: Object, release: str) -> Object:
    """A child that nobody recorded, with another release's images instead of this one's."""
    if made["kind"] not in WITH_PODS:
        return made
    images = {
        name + variant: names.image(role, release) + variant
        for role, name in names.IMAGES.items()
        for variant in ("", names.ON_GPUS)
    }
    made = json.loads(json.dumps(made))
    spec = template_of(made)["spec"]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        container["image"] = images.get(container["image"], container["image"])
    return made


def release_record(owner: str, run: str, target: str, records: Mapping[str, str], made_of: str) -> Object:
    """The Secret with what releases made for an owner, by release. Whoever may write it decides what the run's pods are, as with its keys."""
    made = child("Secret", names.release_record(owner), run, "config", {"type": "Opaque", "data": dict(records)})
    made["metadata"]["annotations"] = {names.RELEASE_ANNOTATION: target, names.MADE_OF_ANNOTATION: made_of}
    return made


def made_of(release: str, text: bytes) -> str:
    """What says in the annotation that a release's record is of these inputs."""
    return f"{release} {digest(text)}"


def _require_ours(made: Object, base: Object | None, owner: str, run: str) -> None:
    """Refuse what no builder makes for this owner: another kind, a name or label of somebody else's, a pod that is not restricted. A record gives
    no more than that. `base`: what this release makes of the record's inputs."""
    kind, metadata = made["kind"], made["metadata"]
    if kind not in SCALED_KINDS and (kind not in CHILD_KINDS | MAYBE_KINDS or kind == "Secret"):
        raise NoRecord(f"has a {kind}")
    name, labels = metadata["name"], metadata["labels"]
    if not (name == owner or name.startswith(f"{owner}-")) or labels[names.RUN_LABEL] != run:
        raise NoRecord(f"has a {kind} {name}, which is not a child of {owner}")
    for texts in (labels, metadata.get("annotations", {})):
        if not all(isinstance(text, str) for text in texts.values()):
            raise NoRecord(f"has a {kind} with labels or annotations that are no texts")
    if kind == "PersistentVolumeClaim":
        quantity_value(made["spec"]["resources"]["requests"]["storage"])
    if kind not in ("ConfigMap", "Secret") and not isinstance(made["spec"], dict):
        raise NoRecord(f"has a {kind} without a spec")
    if kind in WITH_PODS:
        _require_restricted(made, template_of(base)["spec"] if base is not None else {})


def _require_restricted(made: Object, base: Object) -> None:
    kind, spec = made["kind"], template_of(made)["spec"]
    context = spec["securityContext"]
    if (
        context.get("runAsNonRoot") is not True
        or not context.keys() <= POD_CONTEXT
        or context["seccompProfile"] != SECCOMP
        or any(spec.get(name) != base.get(name) for name in OF_THE_SPEC)
        or spec.get("automountServiceAccountToken") is not False
    ):
        raise NoRecord(f"has a {kind} whose pods are not restricted, or have an account that its inputs do not ask for")
    for volume in spec["volumes"]:
        if not volume.keys() - {"name"} <= set(VOLUME_SOURCES):
            raise NoRecord(f"has a {kind} with a volume of a node, or of another kind that no run may have")
    if not all(isinstance(each["spec"], dict) for each in claim_templates_of(made)):
        raise NoRecord(f"has a {kind} with a claim without a spec")
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        context = container["securityContext"]
        if (
            not isinstance(container["image"], str)
            or not context.keys() <= CONTAINER_CONTEXT
            or context.get("allowPrivilegeEscalation") is not False
            or context.get("capabilities") != {"drop": ["ALL"]}
            or context.get("runAsNonRoot", True) is not True
            or context.get("seccompProfile", SECCOMP) != SECCOMP
            or any("hostPort" in port for port in container.get("ports", ()))
        ):
            raise NoRecord(f"has a {kind} with a container that is not restricted")
