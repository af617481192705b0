"""How a part is reached from outside the cluster. Used by relays, and by a run for discovery and orchestrator."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import SpecModel, unset
from shoal_operator.api.pods import Annotations, ObjectRef

HostName = Annotated[
    str,
    StringConstraints(
        max_length=200, pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$"
    ),
]
"""An RFC 1123 host name, or an IPv4 address."""


class GatewayRef(SpecModel):
    """A Gateway of the Gateway API that an admin runs. It says itself which namespaces' routes it takes (`allowedRoutes`)."""

    name: ObjectRef = Field(..., description="Name of the Gateway.")
    namespace: ObjectRef | None = Field(None, description="Its namespace; absent: that of the run.")
    section_name: ObjectRef | None = Field(None, description="Its listener; absent: each one that takes the host.")
    protocol: Literal["HTTPS", "HTTP"] = Field(
        "HTTPS", description="What the listener speaks; the URLs that clients get follow it."
    )


class Exposure(SpecModel):
    """Where clients outside the cluster come in; every pod has its own way in, as nothing balances between our parts."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer", "Ingress", "Gateway"] = Field(
        "ClusterIP",
        description="ClusterIP: from inside the cluster only. Other types make a Service for each pod, and Ingress and Gateway an Ingress or an"
        " HTTPRoute beside it.",
    )
    node_address: HostName | None = Field(
        None,
        description="NodePort: host name or address, as clients reach it, of the node that has the pod. Other nodes answer nothing: keep the pod"
        " there with the nodeSelector of its podTemplate.",
    )
    domain: HostName | None = Field(
        None,
        description="Ingress, Gateway: each pod is `<pod>.<domain>`; a wildcard name in DNS points at the controller.",
    )
    gateway: GatewayRef | None = Field(
        None, exclude_if=unset, description="Gateway: where the HTTPRoutes attach. TLS is the Gateway's."
    )
    ingress_class_name: ObjectRef | None = Field(None, description="Ingress: class; absent: the cluster's default.")
    tls_secret: ObjectRef | None = Field(
        None,
        description="Secret with a certificate (tls.crt, tls.key). Ingress: for `*.<domain>`. NodePort and LoadBalancer (relays only): for the"
        " names or addresses that clients use.",
    )
    tls_secrets: Literal["Shared", "PerHost"] | None = Field(
        None,
        exclude_if=unset,
        description="Ingress: PerHost gives each host a Secret of its own, `<tlsSecret>-<pod>`, as cert-manager makes one for each Ingress that its"
        " annotation is on; absent: Shared.",
    )
    load_balancer_class: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = Field(
        None, description="LoadBalancer: class; absent: the cluster's default."
    )
    annotations: Annotations = Field(
        default_factory=dict, description="Annotations of the Services, Ingresses or HTTPRoutes."
    )
