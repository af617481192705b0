"""Whether claims can be what a manifest asks for: their class, how they are mounted, how they grow; and what their volumes do. Pure.

A claim that can never be bound is refused before anything of a run is made. One that exists stays as it is, apart from its size: pods continue with
the volumes that they have, and the condition `VolumesReady` says what could not change. Cost: microseconds a claim, of which 10,000 workers have
20,000.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shoal_operator.api import TrainingRun
from shoal_operator.api.base import quantity_value
from shoal_operator.api.relay_server import RelayServerTemplate
from shoal_operator.api.validator import ValidatorTemplate
from shoal_operator.children import names
from shoal_operator.children.claims import VolumeClaim, claimed, temporary
from shoal_operator.children.control_plane import redis_claims
from shoal_operator.children.site import SHARED
from shoal_operator.children.storage import store_claims
from shoal_operator.children.trackers import tracker_claims
from shoal_operator.children.workloads import WITH_PODS, claim_templates_of, template_of, volume_claim
from shoal_operator.engine.cluster import Cluster, ClusterError, Object
from shoal_operator.engine.conditions import Condition, condition

VOLUMES_READY = "VolumesReady"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
MOST_TOLD = 3
"""Problems in one message; the others are alike as a rule."""

ONE_NODE = frozenset(
    {
        "block.csi.vultr.com", "blockvolume.csi.oraclecloud.com", "cinder.csi.openstack.org", "csi.hetzner.cloud", "disk.csi.azure.com",
        "diskplugin.csi.alibabacloud.com", "dobs.csi.digitalocean.com", "ebs.csi.aws.com", "ebs.csi.eks.amazonaws.com",
        "kubernetes.io/aws-ebs", "kubernetes.io/azure-disk", "kubernetes.io/cinder", "kubernetes.io/gce-pd", "linodebs.csi.linode.com",
        "local.csi.openebs.io", "openebs.io/local", "pd.csi.storage.gke.io", "rancher.io/local-path", "topolvm.cybozu.com", "topolvm.io",
        "zfs.csi.openebs.io",
    }
)  # fmt: skip
"""Provisioners of block devices and of nodes' own disks: their documentation gives a file system to pods of one node only."""

SEVERAL_NODES = frozenset(
    {
        "csi-nas.csi.alibabacloud.com", "driver.longhorn.io", "efs.csi.aws.com", "file.csi.azure.com", "filestore.csi.storage.gke.io",
        "fsx.csi.aws.com", "kubernetes.io/azure-file", "lustre.csi.storage.gke.io", "nfs.csi.k8s.io", "nasplugin.csi.alibabacloud.com",
        "fss.csi.oraclecloud.com",
    }
)  # fmt: skip
CEPHFS = ".cephfs.csi.ceph.com"
"""End of a provisioner of Rook's, which begins with its namespace."""

BY_HAND = "kubernetes.io/no-provisioner"

Classes = Callable[[], Mapping[str, Object] | None]
"""Reads the StorageClasses; asked only where one matters."""


class Problem(NamedTuple):
    """One CamelCase word, and the same for people."""

    reason: str
    text: str


class ClaimRefused(ClusterError):
    """A claim could never be bound."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.condition = problem.reason


class WantedVolume(NamedTuple):
    """A claim that a run will need: the field that asks for it, and the claim, which may be one of several alike."""

    field: str
    claim: Object

    @property
    def what(self) -> str:
        return f"claim {self.claim['metadata']['name']} ({self.field})"


def wishes(run: TrainingRun) -> list[WantedVolume]:
    """All claims of a run, also those that a workload or a pod will make, one of each kind."""
    spec, name = run.spec, run.metadata.name
    trainer, prepare = spec.trainer, spec.prepare
    relays, judges = spec.relay_server or RelayServerTemplate(), spec.validator or ValidatorTemplate()
    made = [WantedVolume("spec.storeVolume", each) for each in store_claims(run)]
    scratch = claimed(trainer.scratch_volume, trainer.scratch_size)
    found: list[tuple[str, str, VolumeClaim | None]] = [
        ("trainer.scratchVolume", names.outbox(name), scratch),
        ("trainer.temporaryVolume", "tmp", temporary(trainer.temporary_volume)),
        ("prepare.temporaryVolume", "tmp", temporary(prepare.temporary_volume) if prepare is not None else None),
        *(
            ("controlPlane.redisVolume", f"{each}-{names.redis(name)}-0", claim)
            for each, claim in redis_claims(run).items()
        ),
        *(("trackers.volume", f"{each}-{names.tracker(name)}-0", claim) for each, claim in tracker_claims(run).items()),
    ]
    if spec.mode != "SFT" and spec.relay_server_ref is None:
        found.append(
            ("relayServer.cacheVolume", f"www-{names.relay(name)}-0", claimed(relays.cache_volume, relays.cache_size))
        )
    if spec.mode != "SFT" and spec.validator_ref is None:
        found.append(("validator.temporaryVolume", "tmp", temporary(judges.temporary_volume)))
    for number, pool in enumerate(spec.inference_pools if spec.mode != "SFT" else ()):
        weights = claimed(pool.weights_volume, pool.weights_size) if pool.weights_claim is None else None
        found.append((f"inferencePools[{number}].weightsVolume", f"weights-{names.pool(name, pool.name)}-0", weights))
    return made + [
        WantedVolume(f"spec.{field}", volume_claim(claim_name, name, "volumes", claim))
        for field, claim_name, claim in found
        if claim is not None
    ]


def require_volumes(cluster: Cluster, run: TrainingRun) -> None:
    """Raise ClaimRefused for a run of which nothing exists yet and one of whose claims could never be bound."""
    if cluster.get("ConfigMap", names.config(run.metadata.name)) is not None:
        return
    new = (each for each in wishes(run) if cluster.get("PersistentVolumeClaim", each.claim["metadata"]["name"]) is None)
    require(((each.what, cluster.at_site(each.claim)["spec"]) for each in new), cluster.storage_classes)


def claims_in(child: Object) -> Iterator[tuple[str, Object]]:
    """What a child asks the cluster's storage for: each claim in words, and its spec."""
    what, spec = f"{child['kind']} {child['metadata']['name']}", child.get("spec", {})
    if child["kind"] == "PersistentVolumeClaim":
        yield f"claim {child['metadata']['name']}", spec
    if child["kind"] not in WITH_PODS:
        return
    for template in claim_templates_of(child):
        yield f"claim {template['metadata']['name']} of {what}", template["spec"]
    for volume in template_of(child)["spec"].get("volumes", ()):
        template = volume.get("ephemeral", {}).get("volumeClaimTemplate")
        if isinstance(template, dict) and isinstance(template.get("spec"), dict):
            yield f"claim {volume['name']} of {what}", template["spec"]


def new_claims(child: Object, live: Object | None) -> list[tuple[str, Object]]:
    """A child's claims that would be of another class than those of the live one; all where there is none. A claim itself keeps its class."""
    if child["kind"] == "PersistentVolumeClaim" and live is not None:
        return []
    had = {(what, spec.get("storageClassName")) for what, spec in claims_in(live)} if live is not None else set()
    return [(what, spec) for what, spec in claims_in(child) if (what, spec.get("storageClassName")) not in had]


def require(claims: Iterable[tuple[str, Object]], classes: Classes) -> None:
    """Raise ClaimRefused where one of these claims, which do not exist yet, could never be bound. All that is wrong is said at once."""
    asked = list(claims)
    known = classes() if asked else None
    found = [each for what, spec in asked if (each := impossible(what, spec, known)) is not None]
    if found:
        raise ClaimRefused(together(found))


def impossible(what: str, spec: Object, classes: Mapping[str, Object] | None) -> Problem | None:
    """Why a new claim could never be bound; None where it can, or nobody knows."""
    if classes is None:
        return None
    name = spec.get("storageClassName")
    found = classes.get(name) if name is not None else default_class(classes)
    if name and found is None:
        there = f"there are {', '.join(sorted(classes))}" if classes else "there is none"
        return Problem(
            "StorageClassNotFound",
            f"{what} asks for StorageClass {name}, which does not exist ({there}): name another one, or let an admin make it, with provisioner"
            f" {BY_HAND} for volumes that are made by hand",
        )
    if found is not None and SHARED in spec.get("accessModes", ()) and several_nodes(found) is False:
        which = "StorageClass" if name else "the default StorageClass"
        return Problem(
            "ReadWriteManyNotSupported",
            f"{what} must be {SHARED}, and {which} {found['metadata']['name']} ({found['provisioner']}) gives volumes to one node only: name a class"
            " of a shared file system in spec.storeVolume.storageClassName (NFS, CephFS, EFS, Filestore, Azure Files); or use spec.storage.s3; or set"
            " spec.storeVolume.accessMode to ReadWriteOnce, where all pods of the run are on one node",
        )
    return None


def several_nodes(storage_class: Object) -> bool | None:
    """Whether volumes of a class can be mounted by pods of several nodes, by its provisioner; None: not known here."""
    provisioner = storage_class.get("provisioner", "")
    if provisioner in ONE_NODE:
        return False
    return True if provisioner in SEVERAL_NODES or f".{provisioner}".endswith(CEPHFS) else None


def default_class(classes: Mapping[str, Object]) -> Object | None:
    """The class of a claim that names none; of several the newest, as Kubernetes chooses."""
    found = [
        each for each in classes.values() if (each["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
    ]
    return max(found, key=lambda each: str(each["metadata"].get("creationTimestamp", "")), default=None)


def kept_and_grown(wanted: Object, asked: Object, live: Object, classes: Classes) -> tuple[Object, list[Problem]]:
    """A claim's desired object as far as the live one can follow, and what it cannot.

    Args:
        wanted: the claim with the cluster's defaults.
        asked: as the manifest asks for it; a default that changed later is no wish of its author.
        live: the claim. It keeps class and access modes, and its size where it cannot grow.
    """
    name, spec, is_spec = live["metadata"]["name"], dict(wanted["spec"]), live.get("spec", {})
    found: list[Problem] = []
    for field, reason, word in (
        ("storageClassName", "ClassKept", "StorageClass"),
        ("accessModes", "AccessModeKept", "access mode"),
    ):
        have, want = is_spec.get(field), asked["spec"].get(field)
        if want is not None and have != want:
            found.append(
                Problem(
                    reason,
                    f"claim {name} keeps {word} {_text(have)} and does not become {_text(want)}: a claim never changes it; copy its files to a new"
                    " claim, or say what it has",
                )
            )
        if spec.pop(field, None) is not None and have is not None:
            spec[field] = have
    have, want = _size(is_spec), _size(spec)
    problem = None if have is None or want is None else _not_resized(name, live, have, want, classes)
    if problem is not None:
        found.append(problem)
        spec["resources"] = {"requests": {"storage": have}}
    return {**wanted, "spec": spec}, found


def _not_resized(name: str, live: Object, have: str | int, want: str | int, classes: Classes) -> Problem | None:
    """Why a claim keeps its size although another one is wanted; None where it may follow."""
    grows = quantity_value(want) - quantity_value(have)
    if grows == 0:
        return None
    if grows < 0:
        return Problem(
            "ClaimsNotShrunk",
            f"claim {name} has {have} and does not shrink to {want}: volumes only grow; ask for {have}, or start again with a smaller one",
        )
    if live.get("status", {}).get("phase") == "Pending":
        return Problem("ClaimsNotGrown", f"claim {name} cannot grow to {want} before it is bound to a volume of {have}")
    known, class_name = classes(), live.get("spec", {}).get("storageClassName")
    if known is None or not class_name:
        return None  # the API server knows
    if class_name not in known:
        return Problem(
            "ClaimsNotGrown",
            f"claim {name} cannot grow to {want}: its StorageClass {class_name} does not exist any more",
        )
    if known[class_name].get("allowVolumeExpansion") is not True:
        return Problem(
            "ClaimsNotGrown",
            f"claim {name} cannot grow from {have} to {want}: StorageClass {class_name} does not allow it; let an admin set its allowVolumeExpansion,"
            " if its driver can grow volumes, or copy the files to a claim of another class",
        )
    return None


def refused_growth(name: str, error: ClusterError) -> Problem:
    """What the API server said to a claim that may grow by all that is known."""
    return Problem("ClaimsNotGrown", f"claim {name} cannot grow: {' '.join(str(error).split())[:300]}")


def volumes_condition(claims: Sequence[Object], problems: Sequence[Problem], classes: Classes) -> Condition:
    """`VolumesReady`: False for what cannot be as it is wanted, Unknown while claims wait, True when all are bound in their size."""
    found = [*problems, *(each for claim in claims if (each := _unwell(claim)) is not None)]
    if found:
        return condition(VOLUMES_READY, False, *together(found))
    waiting = [each for each in claims if each.get("status", {}).get("phase") == "Pending"]
    if doubts := [each for claim in waiting if (each := _doubt(claim, classes)) is not None]:
        return condition(VOLUMES_READY, None, *together(doubts))
    if waiting:
        told = ", ".join(each["metadata"]["name"] for each in waiting[:MOST_TOLD])
        return condition(VOLUMES_READY, None, "ClaimsPending", f"{len(waiting)} claims wait for a volume: {told}")
    return condition(VOLUMES_READY, True, "ClaimsBound" if claims else "NoClaims")


def _unwell(claim: Object) -> Problem | None:
    """A claim whose volume is lost, grows, or failed to."""
    name, status = claim["metadata"]["name"], claim.get("status", {})
    if status.get("phase") == "Lost":
        return Problem(
            "VolumeLost",
            f"claim {name} has lost its volume {claim.get('spec', {}).get('volumeName')}: what was in it is gone",
        )
    if status.get("phase") != "Bound":
        return None
    want, have = _size(claim.get("spec", {})), status.get("capacity", {}).get("storage")
    if want is None or have is None or quantity_value(have) >= quantity_value(want):
        return None
    said = {each["type"]: each for each in status.get("conditions", ()) if each.get("status") == "True"}
    failed = next((each for kind, each in said.items() if kind.endswith("ResizeError")), None)
    stuck = str(status.get("allocatedResourceStatuses", {}).get("storage", "")).endswith("Infeasible")
    if failed is not None or stuck:
        why = " ".join(str((failed or {}).get("message", "")).split())[:300] or "its driver cannot"
        return Problem("ResizeFailed", f"claim {name} does not grow from {have} to {want}: {why}")
    if "FileSystemResizePending" in said:
        return Problem("Resizing", f"claim {name} grows from {have} to {want} when its pod starts again")
    return Problem("Resizing", f"claim {name} grows from {have} to {want}")


def _doubt(claim: Object, classes: Classes) -> Problem | None:
    """What may keep a claim from ever being bound. Nobody knows all provisioners: it is said, and nothing is refused."""
    known, spec, name = classes(), claim.get("spec", {}), claim["metadata"]["name"]
    if known is None:
        return None
    class_name = spec.get("storageClassName")
    if class_name is None and default_class(known) is None:
        return Problem(
            "NoDefaultStorageClass",
            f"claim {name} names no StorageClass and the cluster has no default one: name one, or let an admin mark one as the default",
        )
    found = known.get(class_name) if class_name is not None else default_class(known)
    if found is not None and SHARED in spec.get("accessModes", ()) and several_nodes(found) is None:
        return Problem(
            "ReadWriteManyNotKnown",
            f"claim {name} waits for a {SHARED} volume of StorageClass {found['metadata']['name']}; whether {found['provisioner']} can make one is"
            " not known here",
        )
    return None


def together(problems: Sequence[Problem]) -> Problem:
    """Several as one: the first one's reason."""
    more = f"; and {len(problems) - MOST_TOLD} more" if len(problems) > MOST_TOLD else ""
    return Problem(problems[0].reason, "; ".join(each.text for each in problems[:MOST_TOLD]) + more)


def _size(spec: Object) -> Any:
    return spec.get("resources", {}).get("requests", {}).get("storage")


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "none")
