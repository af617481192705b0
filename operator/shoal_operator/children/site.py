"""What the admin of a cluster says about the pods of all its runs (chart value `runs`), laid over each child before it is written. Pure.

A run's own word wins: what a manifest names stays as it is. Costs microseconds a child and reconcile.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import SpecModel
from shoal_operator.api.pod_fields import ObjectRef
from shoal_operator.api.pods import Toleration
from shoal_operator.children import names
from shoal_operator.children.network import OPERATOR
from shoal_operator.children.overlay import overlay
from shoal_operator.children.pods import USER_ID, said
from shoal_operator.children.workloads import (
    WITH_PODS,
    claim_templates_of,
    template_of,
    with_claim_templates,
    with_template,
)
from shoal_operator.engine.cluster import ClusterError, Object

SHARED = "ReadWriteMany"

REPOSITORIES = frozenset(image.rpartition(":")[0] for image in names.IMAGES.values())
"""Of the images of every release: a run may be as an earlier one made it."""

RECORDED = "/"
"""Before an image whose digest a release's record gave it, as no spec may begin one: it is pulled from the cluster's registry of today."""

API_SERVER = "https://kubernetes.default.svc"
"""Audience that API servers have where nobody chose another; it is also that of a token without one."""


MOST_DIGESTS = 1024
"""Of images in one lock: 80 releases of a dozen. They reach the operator as one argument, of which Linux takes less than 128 KiB."""


class NotAllowedHere(ClusterError):
    """A run asks for what the admin of this cluster does not allow."""

    condition = "NotAllowedHere"


class Site(SpecModel):
    """Defaults of one cluster for the pods and claims of all runs in it."""

    image_registry: (
        Annotated[str, StringConstraints(max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$")]
        | None
    ) = Field(None, description="Registry, with a path, before the release's images; absent: none.")
    image_digests: dict[
        Annotated[str, StringConstraints(max_length=253)],
        Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")],
    ] = Field(
        {},
        max_length=MOST_DIGESTS,
        description="Digests of releases' images, by their names; the chart of a release has them.",
    )
    image_pull_secrets: list[ObjectRef] = Field([], max_length=8, description="Registry credentials of every pod.")
    storage_class_name: ObjectRef | None = Field(
        None, description="Storage class of new claims; absent: the cluster's default."
    )
    shared_storage_class_name: ObjectRef | None = Field(
        None, description="Storage class of new ReadWriteMany claims, the folder stores; absent: storageClassName."
    )
    tolerations: list[Toleration] = Field([], max_length=16, description="Taints that every pod tolerates.")
    user_ids: Literal["Fixed", "Cluster"] = Field(
        "Fixed",
        description=f"Fixed: user, group and volumes' group {USER_ID}. Cluster: admission chooses, as on OpenShift.",
    )
    host_network: bool = Field(False, description="Whether runs may use their nodes' network.")


def at_site(child: Object, site: Site, home: str = "") -> Object:
    """The child with the cluster's defaults. Raises NotAllowedHere.

    Args:
        home: the operator's own namespace; empty where it runs outside the cluster.
    """
    spec = child.get("spec", {})
    if child["kind"] == "NetworkPolicy":
        return {**child, "spec": _from_home(spec, home)} if home else child
    if child["kind"] == "PersistentVolumeClaim":
        return {**child, "spec": _claimed(spec, site)}
    if child["kind"] not in WITH_PODS:
        return child
    template = template_of(child)
    made = with_template(child, {**template, "spec": _pod(template["spec"], site, child)})
    claims = [{**each, "spec": _claimed(each["spec"], site)} for each in claim_templates_of(child)]
    return with_claim_templates(made, claims) if claims else made


def _from_home(policy: Object, home: str) -> Object:
    """The policy with the operator let in from its own namespace only: in any other one everybody may label a pod as it is labelled."""
    if "ingress" not in policy:
        return policy
    named = {**OPERATOR, "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": home}}}
    rules = [
        {**rule, "from": [named if each == OPERATOR else each for each in rule["from"]]} if "from" in rule else rule
        for rule in policy["ingress"]
    ]
    return {**policy, "ingress": rules}


def _claimed(claim: Object, site: Site) -> Object:
    shared = SHARED in claim.get("accessModes", ()) and site.shared_storage_class_name
    name = shared or site.storage_class_name
    return {"storageClassName": name, **claim} if name else claim


def _pod(pod: Object, site: Site, child: Object) -> Object:
    if pod.get("hostNetwork") and not site.host_network:
        raise NotAllowedHere(
            f"{child['kind']} {child['metadata']['name']}: podTemplate.hostNetwork is not allowed in this cluster, as NetworkPolicies do not hold"
            " there; take it out, or let the admin set the chart's runs.hostNetwork"
        )
    for source in _sources(pod):
        token = source.get("serviceAccountToken")
        audience = token.get("audience") if isinstance(token, dict) else None
        if token is not None and (not audience or str(audience).startswith(API_SERVER)):
            raise NotAllowedHere(
                f"{child['kind']} {child['metadata']['name']}: a serviceAccountToken in podTemplate.volumes needs the audience of a cloud or a vault:"
                " no pod of a run gets a token of the API server"
            )
    pod = dict(pod)
    if site.image_pull_secrets:
        pod = overlay(pod, {"imagePullSecrets": [{"name": name} for name in site.image_pull_secrets]})
    if site.tolerations:
        pod["tolerations"] = [*pod.get("tolerations", []), *said(site.tolerations)]
    if site.user_ids == "Cluster":
        pod["securityContext"] = {
            key: value
            for key, value in pod["securityContext"].items()
            if key not in ("runAsUser", "runAsGroup", "fsGroup") or value != USER_ID
        }
    for field in ("initContainers", "containers"):
        if field in pod:
            pod[field] = [_pulled(each, site) for each in pod[field]]
    if site.storage_class_name is not None or site.shared_storage_class_name is not None:
        pod["volumes"] = [_ephemeral(each, site) for each in pod.get("volumes", [])]
    return pod


def _sources(pod: Object) -> list[Object]:
    """Sources of the pod's projected volumes. What is no such thing the API server refuses."""
    found = [
        each["projected"].get("sources") for each in pod.get("volumes", ()) if isinstance(each.get("projected"), dict)
    ]
    return [source for sources in found if isinstance(sources, list) for source in sources if isinstance(source, dict)]


def _pulled(container: Object, site: Site) -> Object:
    """A release's image from the cluster's registry, by its digest: a tag that somebody moved changes no pod. An image with a digest that no record
    gave it is of the run's spec and stays."""
    image = container["image"]
    if image.startswith(RECORDED):
        image = image.removeprefix(RECORDED)
    elif not _is_released(image):
        return container
    elif digest := site.image_digests.get(image):
        image = f"{image}@{digest}"
    return {**container, "image": image if site.image_registry is None else f"{site.image_registry}/{image}"}


def _is_released(image: str) -> bool:
    """Whether it is a release's image without a digest."""
    return "@" not in image and image.rpartition(":")[0] in REPOSITORIES


def _recorded(container: Object, site: Site) -> Object:
    image = container["image"]
    digest = site.image_digests.get(image) if _is_released(image) else None
    return container if digest is None else {**container, "image": f"{RECORDED}{image}@{digest}"}


def with_digests(child: Object, site: Site) -> Object:
    """The child with the digests of its release's images, for the record of what made it: a later lock may name no earlier release. What comes from
    the record is written by `at_site` only, which takes `RECORDED` away."""
    if child["kind"] not in WITH_PODS:
        return child
    template = template_of(child)
    pod = template["spec"]
    pinned = {
        field: [_recorded(each, site) for each in pod[field]]
        for field in ("initContainers", "containers")
        if field in pod
    }
    return with_template(child, {**template, "spec": {**pod, **pinned}})


def _ephemeral(volume: dict[str, Any], site: Site) -> Object:
    template = volume.get("ephemeral", {}).get("volumeClaimTemplate")
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        return volume  # another kind, or one that the API server refuses
    claim = {**template, "spec": _claimed(template["spec"], site)}
    return {**volume, "ephemeral": {"volumeClaimTemplate": claim}}
