"""Every field of a `podTemplate` reaches the pods that real controllers make, and what a cluster refuses is said with its remedy.

`benchmarks/results/citizen.json` says how many fields these tests see; they hold the figure.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cluster_story import Story
from kube_client import Kube, Object, make_namespace
from operator_process import OperatorProcess

from servers import ROOT

TEMPLATE: Object = {
    "labels": {"team": "rl"},
    "annotations": {"example.org/cost-centre": "42"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "schedulerName": "lab-scheduler",
    "nodeAffinity": [{"key": "pool", "operator": "In", "values": ["gpu"]}],
    "priorityClassName": "research",
    "runtimeClassName": "sandboxed",
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"shoal.dev/run": "sums"}},
        }
    ],
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "noisy"}}}
            ]
        }
    },
    "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "rdma"}],
    "serviceAccountName": "cloud",
    "imagePullSecrets": [{"name": "mirror"}],
    "securityContext": {"runAsUser": 20001, "supplementalGroups": [3000]},
    "hostAliases": [{"ip": "10.0.0.7", "hostnames": ["models.internal"]}],
    "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
    "volumes": [{"name": "models", "emptyDir": {"sizeLimit": "1Gi"}}],
    "containers": [
        {
            "name": "worker",
            "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
            "envFrom": [{"configMapRef": {"name": "nccl", "optional": True}}],
            "resources": {"limits": {"rdma/hca": 1}, "claims": [{"name": "nic"}]},
            "volumeMounts": [{"name": "models", "mountPath": "/models"}],
        }
    ],
}


def worker(pod: Object) -> Object:
    return next(each for each in pod["spec"]["containers"] if each["name"] == "worker")


def has(found: list[Object], **wanted: Any) -> bool:
    return any(wanted.items() <= each.items() for each in found)


MADE_BY_ADMINS: list[Object] = [
    {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "research"}, "value": 7},
    {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "sandboxed"}, "handler": "gvisor"},
]
"""What must exist before the API server takes a pod that names it."""
POOLS: list[Object] = [
    {
        "name": "pool",
        "podTemplate": TEMPLATE,
        "gpu": {"count": 1, "resource": "amd.com/gpu", "type": "MI300X", "typeLabel": "amd.com/gpu.product-name"},
    },
    {"name": "slices", "gpu": {"count": 2, "resource": "nvidia.com/mig-3g.40gb"}},
    {"name": "claims", "gpu": {"count": 2, "claimTemplate": "two-gpus"}},
]
FIELDS: dict[str, Callable[[Object], bool]] = {
    "labels": lambda pod: pod["metadata"]["labels"]["team"] == "rl",
    "annotations": lambda pod: pod["metadata"]["annotations"]["example.org/cost-centre"] == "42",
    "nodeSelector": lambda pod: pod["spec"]["nodeSelector"]["disk"] == "fast",
    "tolerations": lambda pod: has(pod["spec"]["tolerations"], key="gpu", effect="NoSchedule"),
    "schedulerName": lambda pod: pod["spec"]["schedulerName"] == "lab-scheduler",
    "nodeAffinity": lambda pod: "nodeAffinity" in pod["spec"]["affinity"],
    "priorityClassName": lambda pod: pod["spec"]["priority"] == 7,
    "runtimeClassName": lambda pod: pod["spec"]["runtimeClassName"] == "sandboxed",
    "topologySpreadConstraints": lambda pod: has(pod["spec"]["topologySpreadConstraints"], topologyKey="zone"),
    "affinity": lambda pod: "podAntiAffinity" in pod["spec"]["affinity"],
    "resourceClaims": lambda pod: has(pod["spec"]["resourceClaims"], resourceClaimTemplateName="rdma"),
    "serviceAccountName": lambda pod: pod["spec"]["serviceAccountName"] == "cloud",
    "imagePullSecrets": lambda pod: has(pod["spec"]["imagePullSecrets"], name="mirror"),
    "securityContext": lambda pod: pod["spec"]["securityContext"]["runAsUser"] == 20001,
    "hostAliases": lambda pod: has(pod["spec"]["hostAliases"], ip="10.0.0.7"),
    "dnsConfig": lambda pod: has(pod["spec"]["dnsConfig"]["options"], name="ndots"),
    "volumes": lambda pod: has(pod["spec"]["volumes"], name="models"),
    "containers.env": lambda pod: has(worker(pod)["env"], name="NCCL_DEBUG", value="WARN"),
    "containers.envFrom": lambda pod: worker(pod)["envFrom"][0]["configMapRef"]["name"] == "nccl",
    "containers.resources.limits": lambda pod: worker(pod)["resources"]["limits"]["rdma/hca"] == "1",
    "containers.resources.claims": lambda pod: has(worker(pod)["resources"]["claims"], name="nic"),
    "containers.volumeMounts": lambda pod: has(worker(pod)["volumeMounts"], mountPath="/models"),
    "gpu.resource": lambda pod: worker(pod)["resources"]["limits"]["amd.com/gpu"] == "1",
    "gpu.type": lambda pod: "MI300X" in pod["spec"]["nodeSelector"].values(),
    "gpu.typeLabel": lambda pod: "amd.com/gpu.product-name" in pod["spec"]["nodeSelector"],
}
"""A field, and how one sees that the first pool's pod has it."""
OF_OTHERS: dict[str, tuple[str, Callable[[Object], bool]]] = {
    "gpu.count": ("slices", lambda pod: worker(pod)["resources"]["limits"]["nvidia.com/mig-3g.40gb"] == "2"),
    "gpu.claimTemplate": (
        "claims",
        lambda pod: has(pod["spec"]["resourceClaims"], resourceClaimTemplateName="two-gpus"),
    ),
}
"""The same for fields that another pool has."""
ELSEWHERE = {"hostNetwork"}
"""Fields with a test of their own in `test_site_on_api_server.py`."""


@pytest.fixture(scope="module")
def worker_pods(kube: Kube, operator: OperatorProcess, node: Any, orchestrators: Any) -> Iterator[dict[str, Object]]:
    """A pod of each of a run's pools with all of these fields, as the StatefulSet's controller made it."""
    namespace = make_namespace(kube)
    for made in MADE_BY_ADMINS:
        kube.create(made)
    kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "cloud", "namespace": namespace}})
    story = Story(kube, namespace, node, orchestrators)
    story.create(inferencePools=[{"replicas": 1, **pool} for pool in POOLS])
    yield {pool["name"]: story.wait_there("Pod", f"sums-{pool['name']}-0") for pool in POOLS}
    kube.delete("Namespace", namespace)
    for made in MADE_BY_ADMINS:
        kube.delete(made["kind"], made["metadata"]["name"])


@pytest.mark.parametrize("field", [*FIELDS, *OF_OTHERS])
def test_a_field_reaches_the_pod(field: str, worker_pods: dict[str, Object]) -> None:
    pool, reaches = OF_OTHERS.get(field) or ("pool", FIELDS[field])
    assert reaches(worker_pods[pool])


def test_a_pod_has_no_token_of_the_api_server_whatever_its_account(worker_pods: dict[str, Object]) -> None:
    assert worker_pods["pool"]["spec"]["automountServiceAccountToken"] is False


def recorded() -> Any:
    """The figures of `benchmarks/results/citizen.json`."""
    return json.loads((ROOT / "benchmarks/results/citizen.json").read_text())


def test_the_recorded_figure_is_the_fields_that_these_tests_see() -> None:
    assert recorded()["pod_fields_reachable"] == len({*FIELDS, *OF_OTHERS, *ELSEWHERE})


def test_a_field_that_no_pod_has_is_said_and_what_runs_stays(story: Story, operator: OperatorProcess) -> None:
    story.running()
    before = story.get("Deployment", "sums-orchestrator")["spec"]
    wrong = {"affinity": {"podAntiAffinity": {"preferably": []}}}
    story.edit(controlPlane={"podTemplate": wrong})
    story.wait_condition("TrainingRun", "sums", "Ready", "False", "preferably")
    assert story.get("Deployment", "sums-orchestrator")["spec"] == before
    story.edit(controlPlane={"podTemplate": {"affinity": None}})
    story.wait_condition("TrainingRun", "sums", "Ready", "True")


def test_the_nodes_network_is_refused_with_the_remedy(story: Story, operator: OperatorProcess) -> None:
    story.running()
    story.edit(inferencePools=[{"name": "pool", "podTemplate": {"hostNetwork": True}}])
    story.wait_condition("InferencePool", "sums-pool", "Ready", "False", "NotAllowedHere")
    assert "runs.hostNetwork" in story.condition("InferencePool", "sums-pool", "Ready")["message"]
