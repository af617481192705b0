"""Children of a TrainingRun: configuration, volumes, prepare, then control plane, trainer and our three other kinds. Pure.

The order of the list is the order of creation: what a pod mounts comes before the pod. Nothing that needs the prepared model or the task table
exists before prepare has succeeded. A run that is suspended, complete or failed keeps its configuration, volumes and keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from shoal.contracts.roster import Roster, first_roster
from shoal.contracts.run import Addresses, NodeConfig
from shoal.contracts.signed import Signed
from shoal.errors import EXIT_INPUT_WRONG
from shoal_operator.api import InferencePool, TrainingRun, Validator
from shoal_operator.api.base import ChildMeta, ObjectMeta
from shoal_operator.api.pods import Gpus, PodTemplate, PrepareTemplate
from shoal_operator.api.validator import ValidatorTemplate
from shoal_operator.children import names
from shoal_operator.children.claims import claimed, temporary
from shoal_operator.children.control_plane import control_plane
from shoal_operator.children.islands import island_children, lighthouse_way_in
from shoal_operator.children.network import network_policies
from shoal_operator.children.own_kinds import References, own_kinds, relays_of
from shoal_operator.children.pods import Container, config_map, image_of, outward_mounts, pod_template
from shoal_operator.children.run_config import config_hashes, run_config
from shoal_operator.children.runner import runner_children
from shoal_operator.children.scale import Scale
from shoal_operator.children.sources import data_mounts, is_restored, source_mounts
from shoal_operator.children.storage import role_and_store, store_claims
from shoal_operator.children.trackers import tracker_children
from shoal_operator.children.trainer import trainer_job, trainer_services
from shoal_operator.children.ui import ui_children
from shoal_operator.children.workloads import child, digest, job, volume_claim
from shoal_operator.engine.cluster import Object

Stage = Literal["preparing", "running", "suspended", "queued", "complete", "failed"]
"""Where a run is: `preparing` until the prepare Job has succeeded, then `running`. `queued`: its queue does not admit it, or takes it back."""

PREPARE_BACKOFF_LIMIT = 3
"""Of a hub or a store that does not answer. What is wrong with the manifest ends prepare at once, by its exit code."""

CHOOSES_NODES = ("node_selector", "node_affinity", "affinity", "scheduler_name", "tolerations", "runtime_class_name")
"""Fields of a pod template that go with GPUs."""
OF_ONE_PART = ("volumes", "containers", "resource_claims", "host_network", "topology_spread_constraints")
"""Fields that are about the containers and devices of their own part, or about its pods among each other."""


@dataclass(frozen=True)
class RunIdentity:
    """The public half of the run's keys. `islands`: those of the islands, by name; none for a run of one trainer.

    `run_keys_away`: Secrets of run keys that are not in the namespace, and that a change of keys needs.
    """

    run_key: str
    roster: Signed[Roster]
    islands: Mapping[str, str] = field(default_factory=dict)
    run_keys_away: tuple[str, ...] = ()


@dataclass(frozen=True)
class ObservedRun:
    """What builders must know of the world.

    Attributes:
        stage: where the run is, decided by reconcile.
        trainer_attempt: number of the trainer's Job that should exist, or None for none.
        prepared: the prepare Job has succeeded at some time.
        references: objects that others made for the run.
        scales: replicas of the kinds that the run makes, by the object's name; what is not here is as its template says.
        complete_at: policy version at which its orchestrator called the run complete; None before.
        stands: the control plane is needed, so that progress can be read, or as work has not ended yet.
        prepares: the Job of prepare may be made; in a queue never again after it has ended, as no quota is left for it.
    """

    stage: Stage
    trainer_attempt: int | None = None
    prepared: bool = False
    references: References = field(default_factory=References)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    complete_at: int | None = None
    stands: bool = True
    prepares: bool = True


Served = TypeVar("Served", InferencePool, Validator)


@dataclass(frozen=True)
class RunInputs:
    """What a run's children are made of, whatever it does at the moment."""

    run: TrainingRun
    identity: RunIdentity
    references: References
    addresses: Addresses

    @classmethod
    def of(cls, run: TrainingRun, identity: RunIdentity, references: References, addresses: Addresses) -> "RunInputs":
        """Without what an API server writes into metadata, without `spec.release`, and without replicas of which nothing of the run's is made."""
        kept = {key: run.metadata.annotations[key] for key in (names.RESTORED_ANNOTATION,) if is_restored(run)}
        bare = TrainingRun(
            metadata=ObjectMeta(name=run.metadata.name, annotations=kept),
            spec=run.spec.model_copy(update={"release": None}),
        )
        relay, validator = references.relay_server, references.validator
        return cls(
            bare,
            identity,
            References(
                relay and relay.model_copy(update={"metadata": ChildMeta(name=relay.metadata.name)}),
                validator and _unscaled(validator),
                tuple(map(_unscaled, references.pools)),
            ),
            addresses,
        )

    def children(self) -> list[Object]:
        """All parts, at work, with the trainer's first attempt."""
        observed = ObservedRun(stage="running", trainer_attempt=1, prepared=True, references=self.references)
        return training_run_children(self.run, self.identity, observed, self.addresses)


def _unscaled(made: Served) -> Served:
    """A pool or validators by name and spec, without a number of replicas."""
    spec = made.spec.model_copy(update={"replicas": 0})
    return made.model_copy(update={"metadata": ChildMeta(name=made.metadata.name), "spec": spec})


def training_run_children(
    run: TrainingRun, identity: RunIdentity, observed: ObservedRun, addresses: Addresses
) -> list[Object]:
    """Every object that a run owns at this point, except for its Secrets, which reconcile makes."""
    name, spec, references = run.metadata.name, run.spec, observed.references
    config = run_config(run, references, addresses, identity.roster, identity.run_key, identity.islands)
    join = NodeConfig(
        run=name,
        pool=spec.inference_pools[0].name if spec.inference_pools else "pool",
        quantization=spec.quantization,
        discovery=addresses.discovery,
        roster=identity.roster,
        run_key=identity.run_key,
    )
    configuration = child(
        "ConfigMap", names.config(name), name, "config", {"data": {"run.json": config.to_json().decode()}}
    )
    if observed.complete_at is not None:
        configuration["metadata"]["annotations"] = {names.COMPLETE_ANNOTATION: str(observed.complete_at)}
    made = [
        configuration,
        child("ConfigMap", names.join(name), name, "config", {"data": {"node.json": join.to_json().decode()}}),
        *run_claims(run),
        *network_policies(run, relays_of(run, references)),
        *lighthouse_way_in(run),
    ]
    if observed.prepares and (observed.stage != "suspended" or observed.prepared):
        made.append(_prepare(run))
    if not observed.prepared:
        return made
    # The control plane outlives the work, so that progress can be read; suspension stops it too.
    begun = join.model_copy(update={"roster": first_roster(join.roster)})  # nodes follow changed keys without a restart
    hashes = config_hashes(config) | {"pool": digest(begun.to_json())}
    standing = int(observed.stands and observed.stage != "suspended")
    made += [
        *control_plane(run, standing, hashes, identity.roster.document),
        *ui_children(run, standing, hashes["ui"]),
        *tracker_children(run, standing, hashes["tracker"]),
        *trainer_services(run),
        *runner_children(run, work=observed.stage == "running"),
        *island_children(run, hashes["trainer"], work=observed.stage == "running"),
        *own_kinds(run, observed.scales, hashes, work=observed.stage == "running"),
    ]
    if observed.trainer_attempt is not None:
        secret = names.held_secret(name, identity.roster.document, "trainer")
        made.append(trainer_job(run, observed.trainer_attempt, hashes["trainer"], secret))
    return made


def run_claims(run: TrainingRun) -> list[Object]:
    """Claims that no workload makes: the folder store, and volumes of a trainer of one pod, which outlive its attempts; several pods have volumes of
    their own."""
    name, trainer = run.metadata.name, run.spec.trainer
    made = store_claims(run)
    if trainer.replicas == 1:
        scratch = claimed(trainer.scratch_volume, trainer.scratch_size)
        made += [volume_claim(claim, name, "trainer", scratch) for claim in (names.outbox(name), names.www(name))]
    return made


def _prepare(run: TrainingRun) -> Object:
    """The Job that makes the base model and the task table. It has no digest of the configuration: what it made is for good."""
    name, trainer, own = run.metadata.name, run.spec.trainer, run.spec.prepare or PrepareTemplate()
    validator = _validator_with_gpus(run, own)
    gpu = own.gpu or (validator.gpu if validator is not None else Gpus())
    container = Container(
        name="prepare",
        image=image_of("trainer", run.spec.images, gpu),
        command=["python", "-m", "shoal.environments.prepare"],
        role="prepare",
        mounts=(
            config_map(names.config(name)),
            *role_and_store(name, None, run.spec.storage),
            *data_mounts(run.spec),
            *(() if is_restored(run) else source_mounts(name, run.spec)),
            *outward_mounts(own),
        ),
        resources=trainer.resources if validator is None else validator.resources,
        gpu=gpu,
        variables=own.pod_template,
    )
    template = pod_template(
        name,
        "prepare",
        [container],
        grace_seconds=20,
        placement=_prepare_placement(run, own),
        images=run.spec.images,
        gpu=gpu,
        restart_policy="Never",
        temporary=temporary(own.temporary_volume),
    )
    return job(
        names.prepare(name),
        name,
        "prepare",
        template,
        backoff_limit=PREPARE_BACKOFF_LIMIT,
        final_exit_code=EXIT_INPUT_WRONG,
    )


def _validator_with_gpus(run: TrainingRun, own: PrepareTemplate) -> ValidatorTemplate | None:
    """The validator whose GPUs prepare has, or None.

    Validators begin when prepare has ended: until then their GPUs measure what honest proofs of the model differ by. SFT has no proofs.
    Prepare has the trainer's image. One that a manifest names for a trainer without GPUs may be built for CPUs: it gets those of `spec.prepare.gpu`.
    """
    validator = run.spec.validator
    if own.gpu is not None or validator is None or run.spec.mode == "SFT" or not validator.gpu.count:
        return None
    if run.spec.images.trainer is not None and not run.spec.trainer.gpu.count:
        return None
    return validator


def _prepare_placement(run: TrainingRun, own: PrepareTemplate) -> PodTemplate:
    """Where prepare runs: as its own template says, and where that says nothing, as the trainer, whose image it has.

    A pod with a validator's GPUs must reach the validators' nodes: what chooses nodes is then as for validators.
    """
    others, validator = run.spec.trainer.pod_template, _validator_with_gpus(run, own)
    if validator is not None:
        judges = validator.pod_template
        others = others.model_copy(update={name: getattr(judges, name) for name in CHOOSES_NODES})
    kept = others.model_copy(update=dict.fromkeys(OF_ONE_PART))
    return PodTemplate(
        **{name: getattr(own.pod_template, name) or getattr(kept, name) for name in PodTemplate.model_fields}
    )
