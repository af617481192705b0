"""CEL rules of `podTemplate` and of GPUs: what would break a guarantee of ours, and why. The rest is the API server's to judge (ADR 0093)."""

from typing import Any

from shoal_operator.api.rule import Rule

CONTAINERS: dict[str, tuple[str, ...]] = {
    "ControlPlaneTemplate": ("redis", "discovery", "orchestrator", "lighthouse"),
    "InferencePoolSpec": ("agent", "fetch", "worker"),
    "InferencePoolTemplate": ("agent", "fetch", "worker"),
    "PrepareTemplate": ("prepare",),
    "RelayServerSpec": ("sync", "nginx"),
    "RelayServerTemplate": ("sync", "nginx"),
    "RunnerTemplate": ("runner",),
    "TrackersTemplate": ("tracker",),
    "TrainerTemplate": ("trainer", "publisher", "nginx"),
    "UiTemplate": ("ui",),
    "ValidatorSpec": ("validator",),
    "ValidatorTemplate": ("validator",),
}
"""Containers of the pods that a template is about."""

BESIDE: dict[str, dict[str, Any]] = {"TrackersTemplate": {"tensorboard": {}}}
"""What another rule of the same model needs in the examples."""

OWN_VOLUMES = (
    "ca", "certificate", "config", "data", "key", "outbox", "run", "secrets", "shm", "store", "store-credentials", "tmp", "tracks",
    "weights", "www",
)  # fmt: skip
"""Names of the operator's volumes, beside `other-<n>`."""


def _quoted(words: tuple[str, ...]) -> str:
    return ", ".join(f"'{word}'" for word in words)


VOLUME_SOURCES = (
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
)  # fmt: skip

POD_RULES: tuple[Rule, ...] = (
    *(
        Rule(
            model=model,
            expression=f"!has(self.podTemplate.containers) || self.podTemplate.containers.all(c, c.name in [{_quoted(found)}])",
            message=f"must be of this part's containers, which are {', '.join(found)}: none is added, as it would see what they see",
            field="podTemplate.containers",
            good={"podTemplate": {"containers": [{"name": found[0]}]}} | BESIDE.get(model, {}),
            bad={"podTemplate": {"containers": [{"name": "mine"}]}} | BESIDE.get(model, {}),
        )
        for model, found in CONTAINERS.items()
    ),
    *(
        Rule(
            model=model,
            expression="!has(self.affinity) || !has(self.affinity.nodeAffinity) || self.nodeAffinity.size() == 0",
            message="must not be given with nodeAffinity: one of the two says which nodes",
            field="affinity.nodeAffinity",
            good={"affinity": {"nodeAffinity": {}}, "nodeAffinity": []},
            bad={"affinity": {"nodeAffinity": {}}, "nodeAffinity": [{"key": "zone", "operator": "Exists"}]},
        )
        for model in ("PodTemplate", "PodWithVariables")
    ),
    Rule(
        model="RunnerTemplate",
        expression="!has(self.podTemplate.serviceAccountName) && !(has(self.podTemplate.hostNetwork) && self.podTemplate.hostNetwork)",
        message="must have no serviceAccountName or hostNetwork: it judges strangers' programs, without an identity and without a way out",
        field="podTemplate",
        good={"podTemplate": {"schedulerName": "lab"}},
        bad={"podTemplate": {"serviceAccountName": "cloud"}},
    ),
    Rule(
        model="RunnerTemplate",
        expression="(!has(self.podTemplate.volumes) || self.podTemplate.volumes.all(v, !has(v.secret) && !has(v.projected) && !has(v.csi))) && "
        "(!has(self.podTemplate.containers) || self.podTemplate.containers.all(c, (!has(c.env) || c.env.all(e, !has(e.valueFrom))) && "
        "(!has(c.envFrom) || c.envFrom.all(e, !has(e.secretRef)))))",
        message="must have no Secret, no projected and no csi volume, nor a Secret's keys as variables: strangers' programs run beside them",
        field="podTemplate",
        good={
            "podTemplate": {
                "volumes": [{"name": "tables", "configMap": {"name": "data"}}],
                "containers": [
                    {
                        "name": "runner",
                        "env": [{"name": "TZ", "value": "UTC"}],
                        "envFrom": [{"configMapRef": {"name": "data"}}],
                    }
                ],
            }
        },
        bad={"podTemplate": {"containers": [{"name": "runner", "envFrom": [{"secretRef": {"name": "mine"}}]}]}},
    ),
    Rule(
        model="VolumeSpec",
        expression=f"[{', '.join(f'has(self.{source})' for source in VOLUME_SOURCES)}].exists_one(given, given)",
        message=f"must have exactly one of {', '.join(VOLUME_SOURCES)}",
        field="",
        good={"name": "cache", "emptyDir": {}},
        bad={"name": "cache", "emptyDir": {}, "secret": {"secretName": "mine"}},
    ),
    *(
        Rule(
            model=model,
            expression=f"!(self.name in [{_quoted(OWN_VOLUMES)}]) && !self.name.startsWith('other-')",
            message=f"must not be a name of the operator's volumes, which hold keys{more}",
            field="name",
            good={"name": "cache", **beside},
            bad={"name": "weights", **beside},
        )
        for model, beside, more in (
            ("VolumeSpec", {"emptyDir": {}}, ""),
            ("MountSpec", {"mountPath": "/models"}, ": each lies in the containers that may read it"),
        )
    ),
    Rule(
        model="MountSpec",
        expression="!self.mountPath.matches('^/(bin|boot|dev|lib|lib64|opt|proc|sbin|shoal|sys|usr)(/|$)')",
        message="must not lie where the operator or an image has its files: /shoal, /opt, /usr, /bin, /lib, /dev and the like",
        field="mountPath",
        good={"name": "cache", "mountPath": "/models"},
        bad={"name": "cache", "mountPath": "/opt/shoal/lib"},
    ),
    Rule(
        model="PodResourceClaim",
        expression="has(self.resourceClaimName) != has(self.resourceClaimTemplateName) && self.name != 'gpu'",
        message="must have exactly one of resourceClaimName, resourceClaimTemplateName, and another name than `gpu`, which gpu.claimTemplate makes",
        field="",
        good={"name": "nic", "resourceClaimTemplateName": "rdma"},
        bad={"name": "nic"},
    ),
    Rule(
        model="Gpus",
        expression="!has(self.claimTemplate) || (self.count > 0 && !has(self.resource) && !has(self.type))",
        message="needs count, and neither resource nor type: the claim's device class chooses the GPUs",
        field="claimTemplate",
        good={"count": 1, "claimTemplate": "h200"},
        bad={"count": 1, "claimTemplate": "h200", "resource": "amd.com/gpu"},
    ),
    Rule(
        model="Gpus",
        expression="!has(self.typeLabel) || has(self.type)",
        message="goes with type only",
        field="typeLabel",
        good={"count": 1, "type": "MI300X", "typeLabel": "amd.com/gpu.product-name"},
        bad={"count": 1, "typeLabel": "amd.com/gpu.product-name"},
    ),
    *(
        Rule(
            model=model,
            expression="!('nvidia.com/gpu' in self.requests) && !('nvidia.com/gpu' in self.limits)",
            message="must not name nvidia.com/gpu: gpu.count asks for GPUs",
            field="",
            good={"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}},
            bad={"requests": {}, "limits": {"nvidia.com/gpu": 1}},
        )
        for model in ("Resources", "ContainerResources")
    ),
)
