"""What a fresh node is given: cluster DNS, the default storage class, and the permissions of our agent. Pure."""

from typing import Any

from e2e.nodes import layout as at
from e2e.nodes.settings import AGENT_USER

Object = dict[str, Any]

STORAGE_CLASS = "shoal-node"
COREFILE = """cluster.local:53 in-addr.arpa:53 {
    errors
    ready
    health {
        lameduck 1s
    }
    kubernetes cluster.local in-addr.arpa {
        pods insecure
        ttl 2
    }
    cache 2
}
.:53 {
    template ANY ANY {
        rcode NXDOMAIN
    }
}
"""
"""Names of the cluster only: nothing that a test asks for leaves this machine. Records live for two seconds, so that a restarted pod is found."""


def system(dns_image: str) -> list[Object]:
    """All objects, in the order of applying."""
    return [
        *_role("system:coredns", {"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}, DNS_RULES),
        *_role(AGENT_USER, {"kind": "User", "name": AGENT_USER, "apiGroup": RBAC}, AGENT_RULES),
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "coredns", "namespace": "kube-system"},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "coredns", "namespace": "kube-system"},
            "data": {"Corefile": COREFILE},
        },
        _dns_service(),
        _dns_deployment(dns_image),
        storage_class(),
    ]


RBAC = "rbac.authorization.k8s.io"
DNS_RULES = [
    {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
]
AGENT_RULES = [
    {"apiGroups": [""], "resources": ["pods", "namespaces", "persistentvolumeclaims"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["list", "watch", "create", "delete"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"]},
]


def _role(name: str, subject: Object, rules: list[Object]) -> list[Object]:
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    return [
        {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": reference,
            "subjects": [subject],
        },
    ]


def storage_class() -> Object:
    """The default class, whose volumes our agent makes."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "shoal.dev/node",
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }


def _dns_service() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
        "spec": {
            "clusterIP": at.DNS_SERVICE,
            "selector": {"k8s-app": "kube-dns"},
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
            ],
        },
    }


def _dns_deployment(image: str) -> Object:
    labels = {"k8s-app": "kube-dns"}
    container = {
        "name": "coredns",
        "image": image,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
            "runAsUser": 0,  # port 53, without file capabilities on the program
        },
        "volumeMounts": [{"name": "settings", "mountPath": "/etc/coredns", "readOnly": True}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "coredns", "namespace": "kube-system", "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": "coredns",
                    "priorityClassName": "system-cluster-critical",
                    "dnsPolicy": "Default",
                    "containers": [container],
                    "volumes": [{"name": "settings", "configMap": {"name": "coredns"}}],
                },
            },
        },
    }
