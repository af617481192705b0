"""Kinds of other projects on an API server for tests: the frame of their CRDs, whether a cluster has one, and one that is served for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from control_plane import install
from kube_client import RESOURCES, Kube, Object, Refused

from servers import wait_until


def fields(required: list[str], **properties: Object) -> Object:
    """The schema of an object."""
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


CONDITION = fields(
    ["type", "status", "reason", "message", "lastTransitionTime"],
    type={"type": "string", "maxLength": 316},
    status={"type": "string", "enum": ["True", "False", "Unknown"]},
    reason={"type": "string", "minLength": 1, "maxLength": 1024},
    message={"type": "string", "maxLength": 32768},
    lastTransitionTime={"type": "string", "format": "date-time"},
    observedGeneration={"type": "integer", "format": "int64"},
)


def definition(
    api: str, kind: str, schema: Object, *, scope: str = "Namespaced", scale: Object | None = None, approved: str = ""
) -> Object:
    """A CRD. `api`: its group and version. `approved`: who defines a kind below k8s.io names the review that allowed it."""
    group, version = api.removeprefix("/apis/").split("/")
    plural = f"{kind.lower()}s"
    served_version = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}} | ({"scale": scale} if scale else {}),
    }
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    notes = {"annotations": {"api-approved.kubernetes.io": approved}} if approved else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", **notes},
        "spec": {"group": group, "scope": scope, "names": names, "versions": [served_version]},
    }


def is_installed(kube: Kube, kind: str) -> bool:
    """Whether the cluster has the kind's CRD."""
    prefix, plural = RESOURCES[kind]
    return kube.get("CustomResourceDefinition", f"{plural}.{prefix.split('/')[2]}") is not None


def remove(kube: Kube, crds: list[Object]) -> None:
    """Delete CRDs with all their objects, and wait for all: one that is still going when it is applied again would never be served."""
    for crd in crds:
        kube.delete("CustomResourceDefinition", crd["metadata"]["name"])
    for kind in (crd["spec"]["names"]["kind"] for crd in crds):
        wait_until(f"{kind} to be gone", lambda kind=kind: not is_installed(kube, kind), 120.0, interval=0.1)


@contextmanager
def served(kube: Kube, crd: Object) -> Iterator[None]:
    """A kind that clusters may lack is served meanwhile; it goes with all its objects."""
    kind = crd["spec"]["names"]["kind"]

    def is_served() -> bool:
        """A kind that is made again is answered with 429 while its storage begins anew."""
        try:
            kube.list(kind, "default")
        except Refused:
            return False
        return True

    install(kube, [crd])
    wait_until(f"{kind} to be served", is_served, 60.0, interval=0.1)
    try:
        yield
    finally:
        remove(kube, [crd])
