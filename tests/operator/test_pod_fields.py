"""What a `podTemplate` lays over a pod, and what the admin of a cluster lays over every child: pure functions."""

import copy
from typing import Any

import pytest
from pydantic import ValidationError
from test_golden_children import CASES, GOLDEN, build, built, pods

from shoal_operator.api.manifest import check
from shoal_operator.api.pod_rules import CONTAINERS, OWN_VOLUMES
from shoal_operator.api.pods import PodTemplate, PrepareTemplate
from shoal_operator.children.names import IMAGES, SOFTWARE_VERSION
from shoal_operator.children.overlay import overlay
from shoal_operator.children.site import NotAllowedHere, Site, at_site

POD: dict[str, Any] = {
    "initContainers": [{"name": "nginx", "env": [{"name": "SHOAL_ROLE", "value": "trainer"}]}],
    "containers": [{"name": "trainer", "volumeMounts": [{"name": "tmp", "mountPath": "/shoal/tmp"}]}],
    "volumes": [{"name": "tmp", "emptyDir": {}}],
    "tolerations": [{"operator": "Exists"}],
    "securityContext": {"runAsUser": 10001, "runAsNonRoot": True},
}


def test_lists_are_merged_by_kubernetes_own_keys_and_mappings_by_field() -> None:
    before = copy.deepcopy(POD)
    laid = overlay(
        POD,
        {
            "containers": [
                {"name": "nginx", "env": [{"name": "TZ", "value": "UTC"}]},
                {"name": "trainer", "volumeMounts": [{"name": "cache", "mountPath": "/cache"}]},
                {"name": "another part's", "env": []},
            ],
            "volumes": [{"name": "cache", "emptyDir": {}}, {"name": "unmounted", "emptyDir": {}}],
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "securityContext": {"fsGroup": 7},
        },
    )
    assert [each["name"] for each in laid["initContainers"][0]["env"]] == ["TZ", "SHOAL_ROLE"], (
        "ours come last and hold"
    )
    assert [each["mountPath"] for each in laid["containers"][0]["volumeMounts"]] == ["/cache", "/shoal/tmp"]
    assert [each["name"] for each in laid["containers"]] == ["trainer"]
    assert [each["name"] for each in laid["volumes"]] == ["cache", "tmp"]
    assert laid["tolerations"] == [{"key": "gpu", "operator": "Exists"}], "an atomic list is replaced"
    assert laid["securityContext"] == {"runAsUser": 10001, "runAsNonRoot": True, "fsGroup": 7}
    assert before == POD


def test_an_entry_with_a_key_that_is_there_is_merged_into_it() -> None:
    below = {
        "containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
    }
    laid = overlay(
        below,
        {
            "containers": [{"name": "a", "resources": {"limits": {"rdma/hca": 1}}}],
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["b"]}],
        },
    )
    assert laid["containers"][0]["resources"]["limits"] == {"cpu": "1", "rdma/hca": 1}
    assert laid["hostAliases"] == [{"ip": "10.0.0.1", "hostnames": ["b"]}]


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "pod_fields"], ids=lambda path: path.name)
def test_the_rules_know_every_container_and_volume_of_ours(case: Any) -> None:
    for _, pod in pods(case):
        mine = [*pod["containers"], *pod.get("initContainers", [])]
        assert {each["name"] for each in mine} <= {name for each in CONTAINERS.values() for name in each}
        mounted = {mount["name"] for each in mine for mount in each["volumeMounts"]}
        assert all(name in OWN_VOLUMES or name.startswith("other-") for name in mounted)


def test_gpus_of_another_maker_are_asked_for_by_their_resource_and_label() -> None:
    manifest = {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "Validator",
        "metadata": {"name": "sums-validator"},
        "spec": {
            "run": "sums",
            "gpu": {"count": 2, "resource": "amd.com/gpu", "type": "MI300X", "typeLabel": "amd.com/gpu.product-name"},
        },
    }
    found, mistakes = check(manifest)
    assert not mistakes
    from shoal_operator.children import validator_children

    pod = validator_children(found, None)[0]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"amd.com/gpu": 2}
    assert pod["nodeSelector"] == {"amd.com/gpu.product-name": "MI300X"}


def test_gpus_by_claim_are_no_extended_resource() -> None:
    pod = built("inferencepool", "pod_fields")["StatefulSet/sums-fast"]["spec"]["template"]["spec"]
    worker = next(each for each in pod["containers"] if each["name"] == "worker")
    assert worker["resources"] == {"limits": {"rdma/hca": 1}, "claims": [{"name": "nic"}, {"name": "gpu"}]}
    assert {"name": "gpu", "resourceClaimTemplateName": "two-gpus"} in pod["resourceClaims"]
    assert {"name": "SHOAL_GPUS", "value": "2"} in worker["env"]


def test_prepare_takes_over_the_trainers_placement_but_not_its_containers() -> None:
    from test_manifest import GOOD

    from shoal_operator.api import TrainingRun
    from shoal_operator.children.training_run import _prepare_placement

    template = {
        "schedulerName": "lab",
        "serviceAccountName": "cloud",
        "volumes": [{"name": "cache", "emptyDir": {}}],
        "containers": [{"name": "trainer"}],
        "hostNetwork": True,
    }
    spec = GOOD["spec"] | {"trainer": {"podTemplate": template}}
    run, mistakes = check(GOOD | {"spec": spec})
    assert not mistakes
    assert isinstance(run, TrainingRun)
    placed = _prepare_placement(run, PrepareTemplate())
    assert placed == PodTemplate(scheduler_name="lab", service_account_name="cloud")


FEW = [GOLDEN / "trainingrun" / case for case in ("islands", "several_trainer_pods", "tracked")]

SITE = Site(
    image_registry="mirror.example.org/ai",
    image_pull_secrets=["mirror"],
    storage_class_name="fast",
    tolerations=[{"key": "lab", "operator": "Exists"}],
    user_ids="Cluster",
)


def test_a_clusters_defaults_reach_every_pod_and_claim_and_give_way_to_a_runs_own_words() -> None:
    for case in FEW:
        for child in build(case):
            laid = at_site(child, SITE)
            if child["kind"] == "PersistentVolumeClaim":
                assert laid["spec"]["storageClassName"] == "fast"
            if "template" not in child.get("spec", {}):
                continue
            pod = laid["spec"]["template"]["spec"]
            assert {"name": "mirror"} in pod["imagePullSecrets"]
            assert {"key": "lab", "operator": "Exists"} in pod["tolerations"]
            assert "runAsGroup" not in pod["securityContext"]
            assert pod["securityContext"]["runAsNonRoot"]
            for each in [*pod["containers"], *pod.get("initContainers", [])]:
                image = each["image"]
                assert (
                    image.startswith("mirror.example.org/ai/shoal/")
                    or image == "registry.example.org/shoal/worker:dev"
                    or "example" in image
                )
            for claim in laid["spec"].get("volumeClaimTemplates", []):
                assert claim["spec"]["storageClassName"] == "fast"
            assert at_site(child, Site()) == child, "without a word of the admin's nothing changes"


def test_a_releases_images_are_pulled_by_the_digests_of_the_cluster() -> None:
    digest = f"sha256:{'1' * 64}"
    child = built("inferencepool", "two_workers")["StatefulSet/sums-fast"]
    pod = child["spec"]["template"]["spec"]
    images = {each["image"] for each in [*pod["containers"], *pod.get("initContainers", [])]}
    known = f"shoal/worker:{SOFTWARE_VERSION}-cuda"
    assert known in images

    def pulled(**said: Any) -> set[str]:
        laid = at_site(child, Site(image_digests={known: digest, "shoal/worker:0.0.1": digest}, **said))["spec"][
            "template"
        ]["spec"]
        return {each["image"] for each in [*laid["containers"], *laid.get("initContainers", [])]}

    assert pulled() == images - {known} | {f"{known}@{digest}"}
    assert f"mirror.example.org/{known}@{digest}" in pulled(image_registry="mirror.example.org")
    for wrong in ("latest", "sha256:1", digest.upper()):
        with pytest.raises(ValidationError, match="String should match pattern"):
            Site(image_digests={known: wrong})


def test_a_user_that_a_run_chose_stays() -> None:
    child = built("inferencepool", "pod_fields")["StatefulSet/sums-fast"]
    assert at_site(child, SITE)["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 20001


def test_the_nodes_network_is_the_admins_to_allow() -> None:
    child = copy.deepcopy(built("inferencepool", "two_workers")["StatefulSet/sums-fast"])
    child["spec"]["template"]["spec"]["hostNetwork"] = True
    with pytest.raises(
        NotAllowedHere, match=r"StatefulSet sums-fast: podTemplate.hostNetwork is not allowed.*runs.hostNetwork"
    ):
        at_site(child, Site())
    assert at_site(child, Site(host_network=True)) == child


@pytest.mark.parametrize("token", [{"path": "token"}, {"path": "token", "audience": "https://kubernetes.default.svc"}])
def test_no_pod_gets_a_token_of_the_api_server_by_a_volume(token: dict[str, Any]) -> None:
    child = copy.deepcopy(built("inferencepool", "two_workers")["StatefulSet/sums-fast"])
    source = {"serviceAccountToken": token}
    child["spec"]["template"]["spec"]["volumes"].append({"name": "identity", "projected": {"sources": [source]}})
    with pytest.raises(NotAllowedHere, match="needs the audience of a cloud or a vault"):
        at_site(child, Site())
    token["audience"] = "sts.amazonaws.com"
    assert at_site(child, Site()) == child


def test_what_only_the_api_server_checks_may_be_anything_here() -> None:
    spread = [{"maxSkew": 1}, {"topologyKey": ["zone"]}, {"topologyKey": "kubernetes.io/hostname", "maxSkew": 2}]
    ours = [{"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]
    laid = overlay({"containers": [], "topologySpreadConstraints": ours}, {"topologySpreadConstraints": spread})
    assert laid["topologySpreadConstraints"] == [*spread[:2], ours[0] | {"maxSkew": 2}]
    child = copy.deepcopy(built("inferencepool", "two_workers")["StatefulSet/sums-fast"])
    for odd in (
        {"ephemeral": {}},
        {"ephemeral": {"volumeClaimTemplate": {}}},
        {"ephemeral": {"volumeClaimTemplate": {"spec": "large"}}},
        {"projected": {"sources": "all"}},
        {"projected": {"sources": ["all", {"serviceAccountToken": None}]}},
    ):
        child["spec"]["template"]["spec"]["volumes"] = [{"name": "odd", **odd}]
        assert at_site(child, SITE)["spec"]["template"]["spec"]["volumes"] == [{"name": "odd", **odd}]


def test_the_golden_example_names_only_images_of_the_release() -> None:
    assert {
        each["image"].split(":")[0]
        for _, pod in pods(GOLDEN / "inferencepool" / "pod_fields")
        for each in pod["containers"]
    } <= {image.split(":")[0] for image in IMAGES.values()}
