"""Another release of the operator takes a run over under way: nothing of the run changes until `spec.release` asks for it, then part by part."""

import base64
import copy
import json
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import at_version, holds, put, running, said, status
from tools.docs.ports import everything

from servers import ROOT
from shoal_operator.children import names, pods
from shoal_operator.children.pods import Container
from shoal_operator.children.releases import Builder
from shoal_operator.children.site import Site
from shoal_operator.reconcile import releases, training_run

POD_KINDS = ("Deployment", "StatefulSet", "Job")
OF_THIS_RELEASE = dict(names.IMAGES)
NEXT = "9.9.9"
OF_THE_NEXT = {role: image.replace(names.SOFTWARE_VERSION, NEXT) for role, image in names.IMAGES.items()}
PARTS = {"ui": {}, "validator": {}, "relayServer": {"replicas": 2}, "inferencePools": [{"name": "pool"}]}


def images_in(made: dict[str, Any]) -> set[str]:
    pod = made["spec"]["template"]["spec"]
    return {each["image"] for each in [*pod.get("initContainers", []), *pod["containers"]]}


def claims(cluster: MemoryCluster) -> dict[str, str]:
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in cluster.objects.find("PersistentVolumeClaim")}


def live_pods(cluster: MemoryCluster) -> dict[str, dict[str, Any]]:
    return {
        f"{kind}/{each['metadata']['name']}": copy.deepcopy(each)
        for kind in POD_KINDS
        for each in cluster.objects.find(kind)
    }


@pytest.fixture
def upgrade(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Call it: from then on the operator is of that release. Release 9.9.9 makes pods with other images, one more variable and more grace."""
    first = (names.SOFTWARE_VERSION, pods.environment)

    def become(release: str = NEXT) -> None:
        releases._read.cache_clear()
        monkeypatch.setattr(names, "SOFTWARE_VERSION", release)
        monkeypatch.setattr(names, "IMAGES", OF_THE_NEXT if release == NEXT else OF_THIS_RELEASE)
        more = [{"name": "SHOAL_NEW", "value": "1"}] if release == NEXT else []
        monkeypatch.setattr(pods, "environment", lambda role, gpu: [*more, *first[1](role, gpu)])

    yield become
    releases._read.cache_clear()


def test_every_container_of_a_run_names_an_image_of_the_release() -> None:
    named: set[str] = set()
    for made in everything():
        if made["kind"] in POD_KINDS:
            named |= images_in(made)
    assert {image.removesuffix(names.ON_GPUS) for image in named} == set(OF_THIS_RELEASE.values())


def test_a_run_that_pins_its_images_is_not_touched_by_another_release(
    cluster: MemoryCluster, upgrade: Callable[..., None]
) -> None:
    put(cluster, images=OF_THIS_RELEASE, **PARTS)
    running(cluster, version=2)
    before = live_pods(cluster)
    assert len(before) > 6
    cluster.writes.clear()
    upgrade()
    cluster.settle()
    assert (cluster.writes, cluster.objects.deleting()) == ([], [])
    assert live_pods(cluster) == before


def test_a_lock_that_names_no_earlier_release_replaces_no_pod_of_a_run_that_is_kept(
    cluster: MemoryCluster, upgrade: Callable[..., None]
) -> None:
    first = {image: f"sha256:{number:064d}" for number, image in enumerate(OF_THIS_RELEASE.values())}
    cluster.site = Site(image_digests=first, image_registry="registry.example")
    put(cluster, **PARTS)
    running(cluster, version=2)
    before = live_pods(cluster)
    named = {image for each in before.values() for image in images_in(each)}
    assert all(image.startswith("registry.example/shoal/") and "@sha256:" in image for image in named), named
    upgrade()
    later = {image: f"sha256:{number:064x}" for number, image in enumerate(OF_THE_NEXT.values(), 100)}
    cluster.site = Site(image_digests=later, image_registry="registry.example")
    cluster.writes.clear()
    cluster.settle()
    assert {name: each["spec"] for name, each in live_pods(cluster).items()} == {
        name: each["spec"] for name, each in before.items()
    }
    assert cluster.objects.deleting() == []
    put(cluster, release=NEXT, **PARTS)
    at_version(cluster, 3)
    for _ in range(12):
        cluster.settle()
        cluster.pods_start()
    parts = {name: each for name, each in live_pods(cluster).items() if not name.startswith("Job/")}
    named = {image for each in parts.values() for image in images_in(each)}
    assert named <= {f"registry.example/{image}@{digest}" for image, digest in later.items()}, named


def test_an_image_that_a_run_gives_with_a_digest_is_not_pulled_from_the_clusters_registry(
    cluster: MemoryCluster, upgrade: Callable[..., None]
) -> None:
    """Neither where this release makes the pods, nor where they are kept as its record has them."""
    cluster.site = Site(
        image_digests=dict.fromkeys(OF_THIS_RELEASE.values(), f"sha256:{'1' * 64}"),
        image_registry="registry.example",
    )
    pinned = f"{OF_THIS_RELEASE['worker']}@sha256:{'2' * 64}"
    put(cluster, **PARTS, images={"worker": pinned})
    running(cluster, version=2)
    before = live_pods(cluster)
    named = {image for each in before.values() for image in images_in(each)}
    assert {image for image in named if not image.startswith("registry.example/")} == {pinned}
    assert all(image.endswith(f"@sha256:{'1' * 64}") for image in named - {pinned}), named
    upgrade()
    cluster.settle()
    assert {name: each["spec"] for name, each in live_pods(cluster).items()} == {
        name: each["spec"] for name, each in before.items()
    }
    assert cluster.objects.deleting() == []
    cluster.site = cluster.site.model_copy(update={"image_registry": "mirror.example"})
    cluster.settle()
    [kept], [moved] = (images_in(each["Deployment/sums-orchestrator"]) for each in (before, live_pods(cluster)))
    assert moved == kept.replace("registry.example", "mirror.example"), "a record says no registry"


def test_the_documented_patch_asks_for_this_release() -> None:
    [asked] = re.findall(r'"release":"([^"]*)"', (ROOT / "docs" / "journeys" / "my-cluster.md").read_text())
    assert asked == names.SOFTWARE_VERSION


def test_pinning_the_running_images_changes_no_pod(cluster: MemoryCluster, upgrade: Callable[..., None]) -> None:
    put(cluster, **PARTS)
    running(cluster, version=2)
    before = live_pods(cluster)
    put(cluster, images=OF_THIS_RELEASE, **PARTS)
    cluster.settle()
    upgrade()
    cluster.settle()
    after = live_pods(cluster)
    assert {name: each["spec"] for name, each in after.items()} == {name: each["spec"] for name, each in before.items()}
    assert cluster.objects.deleting() == []


def templates(cluster: MemoryCluster) -> dict[str, Any]:
    return {name: each["spec"]["template"] for name, each in live_pods(cluster).items()}


def is_next(made: dict[str, Any]) -> bool:
    return images_in(made) <= set(OF_THE_NEXT.values())


def rolled(cluster: MemoryCluster) -> list[str]:
    """Workloads whose pods are of the next release."""
    return sorted(name for name, each in live_pods(cluster).items() if is_next(each))


def test_another_release_changes_no_pod_and_says_so(cluster: MemoryCluster, upgrade: Callable[..., None]) -> None:
    put(cluster, **PARTS)
    running(cluster, version=2)
    before = live_pods(cluster)
    upgrade()
    cluster.writes.clear()
    cluster.settle()
    assert (cluster.writes, cluster.objects.deleting(), live_pods(cluster)) == ([], [], before)
    assert f":{status(cluster)['release']}" in OF_THIS_RELEASE["trainer"]
    assert said(cluster, "UpToDate")["reason"] == "OtherRelease"
    assert "set spec.release: 9.9.9" in said(cluster, "UpToDate")["message"]


def test_drift_is_repaired_to_what_the_earlier_release_made(
    cluster: MemoryCluster, upgrade: Callable[..., None]
) -> None:
    put(cluster, **PARTS)
    running(cluster, version=2)
    before = live_pods(cluster)
    upgrade()
    for kind, name in (("Deployment", "sums-orchestrator"), ("StatefulSet", "sums-pool")):
        live = cluster.get(kind, name)
        assert live is not None
        live["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
        cluster.objects.apply(live)
    cluster.settle()
    assert templates(cluster) == {name: each["spec"]["template"] for name, each in before.items()}


def test_an_edit_changes_only_what_it_is_about(cluster: MemoryCluster, upgrade: Callable[..., None]) -> None:
    put(cluster, **PARTS)
    running(cluster, version=2)
    before = templates(cluster)
    upgrade()
    put(
        cluster,
        **PARTS | {"validator": {"replicas": 3, "resources": {"limits": {"memory": "9Gi"}}}, "runner": {"replicas": 2}},
    )
    cluster.settle()
    after = templates(cluster)
    [container] = after["Deployment/sums-validator"]["spec"]["containers"]
    [was] = before["Deployment/sums-validator"]["spec"]["containers"]
    assert container == was | {"resources": {"limits": {"memory": "9Gi"}}}
    assert live_pods(cluster)["Deployment/sums-validator"]["spec"]["replicas"] == 3
    # What the edit adds has the images of the run's release.
    assert rolled(cluster) == []
    assert images_in(live_pods(cluster)["StatefulSet/sums-runner"]) <= set(OF_THIS_RELEASE.values())
    assert after["Job/sums-trainer-1"] == before["Job/sums-trainer-1"]


def test_an_edit_that_the_new_operator_finds_is_not_lost(cluster: MemoryCluster, upgrade: Callable[..., None]) -> None:
    put(cluster, **PARTS)
    running(cluster, version=2)
    put(cluster, **PARTS | {"trainer": {"podTemplate": {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}}})
    upgrade()
    cluster.settle()
    cluster.pods_end()
    cluster.settle()
    trainer = live_pods(cluster)["Job/sums-trainer-2"]
    [container] = trainer["spec"]["template"]["spec"]["containers"]
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in container["env"]
    assert images_in(trainer) <= set(OF_THIS_RELEASE.values())
    assert "SHOAL_NEW" not in str(container["env"])


def test_suspension_and_an_attempt_that_failed_do_not_change_the_release(
    cluster: MemoryCluster, upgrade: Callable[..., None]
) -> None:
    put(cluster, **PARTS)
    running(cluster, version=2)
    upgrade()
    put(cluster, **PARTS, suspend=True)
    cluster.settle()
    cluster.pods_end()
    put(cluster, **PARTS)
    cluster.settle()
    cluster.pods_start()
    cluster.settle()
    assert "Job/sums-trainer-2" in live_pods(cluster)
    assert rolled(cluster) == []


def test_a_next_attempt_of_several_pods_keeps_the_words_of_its_release(
    cluster: MemoryCluster, upgrade: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = PARTS | {"trainer": {"replicas": 2}}
    put(cluster, **parts)
    running(cluster, version=2)
    [before] = (each for name, each in live_pods(cluster).items() if name.startswith("Job/sums-trainer"))
    upgrade()
    as_it_is = Container.to_object

    def with_a_new_word(self: Container) -> dict[str, Any]:
        made = as_it_is(self)
        return made | {"command": [made["command"][0], "--a-word-of-the-next", *made["command"][1:]]}

    monkeypatch.setattr(Container, "to_object", with_a_new_word)
    cluster.settle()
    assert live_pods(cluster)["Job/sums-trainer-1"] == before
    cluster.job_ends("sums-trainer-1", "Failed")
    at_version(cluster, 3)
    cluster.settle()
    cluster.pods_end()
    cluster.settle()
    after = live_pods(cluster)["Job/sums-trainer-2"]
    [old], [new] = (each["spec"]["template"]["spec"]["containers"] for each in (before, after))
    assert new["command"] == [word.replace("sums-trainer-1", "sums-trainer-2") for word in old["command"]]


def roll(cluster: MemoryCluster, to: str) -> list[list[str]]:
    """Ask for a release, and let pods start; returns what was of the next one after each round until nothing changes."""
    put(cluster, **PARTS, release=to)
    seen: list[list[str]] = []
    for _ in range(20):
        cluster.settle()
        if not seen or seen[-1] != rolled(cluster):
            seen.append(rolled(cluster))
        cluster.pods_start()
    return seen


def test_parts_are_rolled_in_order_and_the_trainer_last_after_a_version(
    cluster: MemoryCluster, upgrade: Callable[..., None]
) -> None:
    put(cluster, **PARTS)
    running(cluster, version=2)
    volumes, before = claims(cluster), live_pods(cluster)
    upgrade()
    seen = roll(cluster, NEXT)
    new = [sorted(set(after) - set(earlier)) for earlier, after in zip([[], *seen], seen, strict=False)]
    assert [each for each in new if each] == [
        ["StatefulSet/sums-relay"],
        ["Deployment/sums-validator"],
        ["Deployment/sums-ui"],
        ["StatefulSet/sums-pool"],
        ["Deployment/sums-discovery"],
        ["Deployment/sums-orchestrator", "StatefulSet/sums-redis"],
    ]
    assert said(cluster, "UpToDate")["reason"] == "WaitsForStep"
    assert live_pods(cluster)["Job/sums-trainer-1"]["spec"] == before["Job/sums-trainer-1"]["spec"]
    at_version(cluster, 3)
    cluster.settle()
    assert [each["metadata"]["name"] for each in cluster.objects.deleting()] == ["sums-trainer-1"]
    cluster.pods_end()
    cluster.settle()
    cluster.pods_start()
    cluster.settle()
    assert is_next(live_pods(cluster)["Job/sums-trainer-2"])
    assert status(cluster)["trainer"] == {"attempt": 2, "startedAtVersion": 3, "failures": 0, "lastFailed": 0}
    assert (status(cluster)["release"], claims(cluster)) == (NEXT, volumes)
    assert {"UpToDate", "Ready"} <= holds(cluster)
    assert live_pods(cluster)["Job/sums-prepare"] == before["Job/sums-prepare"], "what was prepared stays"
    # Without a wish it stays there.
    put(cluster, **PARTS)
    cluster.settle()
    assert status(cluster)["release"] == NEXT


def test_a_part_that_does_not_start_stops_the_roll_and_the_way_back_is_open(
    cluster: MemoryCluster, upgrade: Callable[..., None]
) -> None:
    first = names.SOFTWARE_VERSION
    put(cluster, **PARTS)
    running(cluster, version=2)
    before = templates(cluster)
    upgrade()
    put(cluster, **PARTS, release=NEXT)
    cluster.settle()
    assert rolled(cluster) == ["StatefulSet/sums-relay"]
    assert said(cluster, "UpToDate")["message"].endswith("StatefulSet sums-relay is not ready")
    roll(cluster, first)
    assert templates(cluster) == before
    assert (status(cluster)["release"], said(cluster, "UpToDate")["reason"]) == (first, "OtherRelease")


def test_two_releases_that_lead_in_turn_write_nothing(cluster: MemoryCluster, upgrade: Callable[..., None]) -> None:
    first = names.SOFTWARE_VERSION
    put(cluster, **PARTS)
    running(cluster, version=2)
    before = live_pods(cluster)
    for release in (NEXT, first, NEXT, first):
        upgrade(release)
        cluster.settle()
    assert (live_pods(cluster), cluster.objects.deleting()) == (before, [])


def test_the_earlier_operator_keeps_what_the_later_one_made(
    cluster: MemoryCluster, upgrade: Callable[..., None]
) -> None:
    first = names.SOFTWARE_VERSION
    upgrade()
    put(cluster, **PARTS)
    running(cluster, version=2)
    before = live_pods(cluster)
    upgrade(first)
    cluster.settle()
    assert live_pods(cluster) == before
    assert "SHOAL_NEW" in str(before["Job/sums-trainer-1"])


def test_a_release_of_which_nothing_is_known_is_refused(cluster: MemoryCluster, upgrade: Callable[..., None]) -> None:
    put(cluster, **PARTS)
    running(cluster, version=2)
    before = live_pods(cluster)
    put(cluster, **PARTS, release="0.1.0")
    cluster.settle()
    assert live_pods(cluster) == before
    found = said(cluster, "UpToDate")
    assert (found["status"], found["reason"]) == ("False", "UnknownRelease")
    assert found["message"].startswith("spec.release is 0.1.0, of which nothing is known here: give 0.2.0;")


OF_THE_ADMINS_CLOUD = {
    "serviceAccountName": "cloud",
    "hostNetwork": True,
    "volumes": [{"name": "models", "csi": {"driver": "models.example"}}, {"name": "me", "downwardAPI": {"items": []}}],
    "containers": [
        {
            "name": "trainer",
            "volumeMounts": [{"name": "models", "mountPath": "/models"}, {"name": "me", "mountPath": "/me"}],
        }
    ],
}


def test_a_run_with_an_account_and_volumes_of_its_own_is_kept_too_and_an_edit_takes_them_back(
    cluster: MemoryCluster, upgrade: Callable[..., None]
) -> None:
    account = {"podTemplate": {"serviceAccountName": "cloud"}}
    parts = PARTS | {"inferencePools": [{"name": "pool", **account}], "trainer": {"podTemplate": OF_THE_ADMINS_CLOUD}}
    put(cluster, **parts)
    running(cluster, version=2)
    before = live_pods(cluster)
    assert before["Job/sums-trainer-1"]["spec"]["template"]["spec"]["serviceAccountName"] == "cloud"
    upgrade()
    cluster.writes.clear()
    cluster.settle()
    assert (cluster.writes, cluster.objects.deleting(), live_pods(cluster)) == ([], [], before)
    put(cluster, **PARTS)
    cluster.settle()
    cluster.pods_end()
    cluster.settle()
    after = {
        name: each for name, each in live_pods(cluster).items() if name != "Job/sums-prepare"
    }  # that one has ended
    assert not any(word in str(after) for word in ("'cloud'", "hostNetwork", "csi"))
    assert rolled(cluster) == []


def test_a_record_that_gives_more_than_a_builder_does_is_not_used(
    cluster: MemoryCluster, upgrade: Callable[..., None]
) -> None:
    put(cluster, **PARTS)
    running(cluster, version=2)
    first, builder = names.SOFTWARE_VERSION, training_run.BUILDER
    record = cluster.get("Secret", "sums-release")
    assert record is not None
    text = record["data"][first]

    def read(record: str) -> Any:
        return builder.read(first, record, "sums", "sums")

    def forged(change: Callable[[dict[str, Any]], Any], kind: str = "Deployment") -> str:
        document = json.loads(zlib.decompress(base64.b64decode(text)))
        change(next(each for each in document["children"] if each["kind"] == kind))
        return base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()

    assert read(text).release == first
    in_pod: list[Callable[[dict[str, Any]], Any]] = [
        lambda pod: pod.update(hostPID=True),
        lambda pod: pod["volumes"].append({"name": "root", "hostPath": {"path": "/"}}),
        lambda pod: pod.update(serviceAccountName="admin"),
        lambda pod: pod.update(serviceAccount="admin"),
        lambda pod: pod.update(nodeName="control-plane"),
        lambda pod: pod["containers"][0]["securityContext"].update(privileged=True),
        lambda pod: pod["containers"][0]["securityContext"].update(runAsNonRoot=False, runAsUser=0),
        lambda pod: pod["containers"][0].update(ports=[{"containerPort": 80, "hostPort": 80}]),
        lambda pod: pod["securityContext"].update(runAsNonRoot=False),
        lambda pod: pod["securityContext"].update(windowsOptions={"hostProcess": True}),
        lambda pod: pod["securityContext"].update(seccompProfile={"type": "Unconfined"}),
        lambda pod: pod.update(hostNetwork=True),
    ]
    in_child: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
        ("Deployment", lambda made: made["metadata"].update(name="billing")),
        ("Service", lambda made: made["metadata"].update(name="summary")),
        ("Service", lambda made: made["metadata"]["labels"].update({names.RUN_LABEL: "another"})),
        ("Service", lambda made: made["metadata"].update(labels=None)),
        ("Service", lambda made: made["metadata"].update(annotations={"a": {}})),
        ("Service", lambda made: made.update(spec=7)),
        ("Service", lambda made: made["spec"].update(ports=10**30)),
        ("PersistentVolumeClaim", lambda made: made.update(spec={})),
        ("Service", lambda made: made.update(kind="Secret")),
    ]
    wrong = [forged(lambda made, change=change: change(made["spec"]["template"]["spec"])) for change in in_pod]
    wrong += [forged(change, kind) for kind, change in in_child]
    wrong += ["", "AAAA", *(base64.b64encode(zlib.compress(each * 100_000_000)).decode() for each in (b"[", b" "))]
    for each in wrong:
        with pytest.raises(releases.NoRecord):
            read(each)
    upgrade()
    record["data"][first] = wrong[11]
    cluster.objects.apply(record)
    cluster.settle()
    assert "hostNetwork" not in str(live_pods(cluster))
    assert "is not known" in said(cluster, "UpToDate")["message"]


def test_a_record_of_many_releases_is_not_unpacked_again_and_again(
    cluster: MemoryCluster, upgrade: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, **PARTS)
    running(cluster, version=2)
    before = live_pods(cluster)
    record = cluster.get("Secret", "sums-release")
    assert record is not None
    bomb = base64.b64encode(zlib.compress(b" " * (2 << 20), 9)).decode()
    record["data"] |= {f"0.0.{number}": bomb for number in range(50)}
    cluster.objects.apply(record)
    upgrade()
    reads: list[str] = []
    as_it_is = Builder.read

    def counted(self: Any, release: str, *rest: str) -> Any:
        reads.append(release)
        return as_it_is(self, release, *rest)

    monkeypatch.setattr(Builder, "read", counted)
    cluster.settle()
    cluster.settle()
    assert live_pods(cluster) == before
    assert [each for each in reads if each.startswith("0.0.")] == ["0.0.0"]
