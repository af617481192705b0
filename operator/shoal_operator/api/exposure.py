"""How a part is reached from outside the cluster. Used by relays, and by a run for discovery and orchestrator."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import SpecModel
from shoal_operator.api.pods import Annotations, ObjectRef

HostName = Annotated[
    str,
    StringConstraints(
        max_length=200, pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$"
    ),
]
"""An RFC 1123 host name, or an IPv4 address."""


class Exposure(SpecModel):
    """Where clients outside the cluster come in; every pod has its own way in, as nothing balances between our parts."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer", "Ingress"] = Field(
        "ClusterIP",
        description="ClusterIP: from inside the cluster only. Other types make a Service or an Ingress for each pod.",
    )
    node_address: HostName | None = Field(
        None, description="NodePort: host name or address of the nodes as clients reach them."
    )
    domain: HostName | None = Field(
        None, description="Ingress: each pod is `<pod>.<domain>`; a wildcard name in DNS points at the controller."
    )
    ingress_class_name: ObjectRef | None = Field(None, description="Ingress: class; absent: the cluster's default.")
    tls_secret: ObjectRef | None = Field(
        None,
        description="Secret with a certificate (tls.crt, tls.key). Ingress: for `*.<domain>`. NodePort and LoadBalancer (relays only): for the"
        " names or addresses that clients use.",
    )
    load_balancer_class: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = Field(
        None, description="LoadBalancer: class; absent: the cluster's default."
    )
    annotations: Annotations = Field(default_factory=dict, description="Annotations of the Services or Ingresses.")
