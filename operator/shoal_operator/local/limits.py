"""Fields of a TrainingRun that one machine cannot follow, in words, and those that it ignores on purpose. Pure; called before anything is started.

Left out: `ttlSecondsAfterFinished` (the report is made after the end), `queueName` and `managedBy` (there is no queue), `dataClaim` (paths
are the machine's); `ui` (the program `shoal ui` is the page here, and knows every pod), runners unless they are asked for. Without effect, as there
is one node, one user and one network: placement, priorities, images, exposure, NetworkPolicies, disruption budgets, sizes and classes of volumes.
"""

from shoal_operator.api import TrainingRun
from shoal_operator.api.manifest import Mistake
from shoal_operator.api.pods import PodTemplate
from shoal_operator.api.runner import RunnerTemplate

OF_CLAIMS = frozenset({"scratch_volume", "temporary_volume"})
"""Volumes of a part that are claimed by pods: here they are folders."""


def beyond_one_machine(run: TrainingRun, source: str) -> list[Mistake]:
    """Fields of the run that are not available on one machine."""
    spec = run.spec
    mistakes = []
    if spec.trainer.replicas > 1:
        mistakes.append(
            (
                "spec.trainer.replicas",
                f"given {spec.trainer.replicas}; one machine has one trainer pod: set 1, and the ranks in processesPerReplica",
            )
        )
    if spec.storage.s3 is not None and spec.storage.s3.workload_identity is not None:
        mistakes.append(
            (
                "spec.storage.s3.workloadIdentity",
                "one machine gives no service account tokens: name keys in credentialsSecret, and give them by --secret",
            )
        )
    mistakes += [
        (
            f"spec.storage.{cloud}",
            "one machine gives no service account tokens: leave it out for a folder, or use storage.s3 with credentialsSecret",
        )
        for cloud in ("azure", "gcs")
        if getattr(spec.storage, cloud) is not None
    ]
    for number, pool in enumerate(spec.inference_pools):
        if pool.engine.hosts > 1:
            mistakes.append(
                (
                    f"spec.inferencePools.{number}.engine.hosts",
                    f"given {pool.engine.hosts}; one machine is one host: leave it out, and spread the engine over the GPUs of this machine",
                )
            )
        if pool.weights_claim is not None:
            mistakes.append(
                (
                    f"spec.inferencePools.{number}.weightsClaim",
                    "one machine has no claims: leave it out, its folder is used",
                )
            )
    for path, template in pod_templates(run).items():
        if template.volumes or any(each.volume_mounts for each in template.containers or ()):
            mistakes.append(
                (f"{path}.volumes", "one machine has no volumes of yours; name its own folders in the spec")
            )
    for field, given in (
        ("relayServerRef", spec.relay_server_ref),
        ("validatorRef", spec.validator_ref),
        ("inferencePoolRefs", spec.inference_pool_refs),
    ):
        if given:
            mistakes.append(
                (f"spec.{field}", "one machine has no objects that others made; put the template into the run")
            )
    return [Mistake(source, 0, path, problem) for path, problem in mistakes]


def pod_templates(run: TrainingRun) -> dict[str, PodTemplate]:
    """The `podTemplate` of each part that the run gives, by its path."""
    spec = run.spec
    parts = {
        "prepare": spec.prepare,
        "trainer": spec.trainer,
        "relayServer": spec.relay_server,
        "validator": spec.validator,
        "runner": spec.runner,
        "controlPlane": spec.control_plane,
        "ui": spec.ui,
        "trackers": spec.trackers,
        **{f"inferencePools.{number}": pool for number, pool in enumerate(spec.inference_pools)},
    }
    return {f"spec.{name}.podTemplate": part.pod_template for name, part in parts.items() if part is not None}


def for_one_machine(run: TrainingRun) -> TrainingRun:
    """The run without the fields that one machine ignores."""
    # Without runners of its own a run has its programs judged where they are scored: all pods are processes of one user here.
    runner = run.spec.runner or RunnerTemplate(replicas=0)
    left_out = {
        "ttl_seconds_after_finished": None,
        "queue_name": None,
        "managed_by": None,
        "ui": None,
        "data_claim": None,
    }
    parts = ((each, getattr(run.spec, each)) for each in ("prepare", "trainer", "validator"))
    bare = {
        each: part.model_copy(update=dict.fromkeys(type(part).model_fields.keys() & OF_CLAIMS))
        for each, part in parts
        if part is not None
    }
    kept = run.spec.model_copy(update=left_out | {"runner": runner, **bare})
    return run.model_copy(update={"spec": kept})
