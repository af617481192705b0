"""Children of a TrainingRun: configuration, volumes, prepare, then control plane, trainer and our three other kinds. Pure.

The order of the list is the order of creation: what a pod mounts comes before the pod. Nothing that needs the prepared model or the task table
exists before prepare has succeeded. A run that is suspended, complete or failed keeps its configuration, volumes and keys.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.contracts.canonical import Signed
from shoal.contracts.identity import Roster
from shoal.contracts.recipe import ModelSource
from shoal.contracts.run import Addresses, NodeConfig, RunConfig
from shoal_operator.api import API_VERSION, TrainingRun
from shoal_operator.children import names
from shoal_operator.children.control_plane import discovery, orchestrator, redis
from shoal_operator.children.pods import Container, child, config_map, digest, job, pod_template, volume_claim
from shoal_operator.children.storage import role_and_store, store_claim
from shoal_operator.children.trainer import trainer_job, trainer_service
from shoal_operator.engine.cluster import Object

Stage = Literal["preparing", "running", "suspended", "complete", "failed"]
"""Where a run is: `preparing` until the prepare Job has succeeded, then `running`."""

PREPARE_BACKOFF_LIMIT = 3
"""Prepare is deterministic: what failed this often will fail again."""


@dataclass(frozen=True)
class RunIdentity:
    """The public half of the run's keys."""

    run_key: str
    roster: Signed[Roster]


@dataclass(frozen=True)
class ObservedRun:
    """What builders must know of the world.

    Attributes:
        stage: where the run is, decided by reconcile.
        trainer_attempt: number of the trainer's Job that should exist, or None for none.
        prepared: the prepare Job has succeeded at some time.
    """

    stage: Stage
    trainer_attempt: int | None = None
    prepared: bool = False


def training_run_children(
    run: TrainingRun, identity: RunIdentity, observed: ObservedRun, addresses: Addresses
) -> list[Object]:
    """Every object that a run owns at this point, but for its Secrets, which reconcile makes."""
    name, spec = run.metadata.name, run.spec
    config = run_config(run, identity, addresses)
    join = NodeConfig(
        run=name,
        pool=spec.inference_pool.name,
        discovery=addresses.discovery,
        roster=identity.roster,
        run_key=identity.run_key,
    )
    made = [
        child("ConfigMap", names.config(name), name, "config", {"data": {"run.json": config.to_json().decode()}}),
        child("ConfigMap", names.join(name), name, "config", {"data": {"node.json": join.to_json().decode()}}),
        *store_claim(name, spec.storage),
        volume_claim(names.outbox(name), name, "trainer", spec.trainer.scratch_size, "ReadWriteOnce"),
        volume_claim(names.www(name), name, "trainer", spec.trainer.scratch_size, "ReadWriteOnce"),
    ]
    if observed.stage != "suspended" or observed.prepared:
        made.append(_prepare(run))
    if not observed.prepared:
        return made
    # The control plane outlives the work, so that progress can be read; suspension stops it too.
    control = 0 if observed.stage == "suspended" else 1
    work = observed.stage == "running"
    hashes = config_hashes(config)
    made += [
        *redis(name, control),
        *discovery(name, control, hashes["discovery"]),
        *orchestrator(name, control, hashes["orchestrator"], spec.storage),
        trainer_service(name),
        *_own_kinds(run, work=work),
    ]
    if observed.trainer_attempt is not None:
        made.append(trainer_job(run, observed.trainer_attempt, hashes["trainer"]))
    return made


def run_config(run: TrainingRun, identity: RunIdentity, addresses: Addresses) -> RunConfig:
    """`config/run.json` of a run."""
    spec = run.spec
    return RunConfig(
        run=run.metadata.name,
        seed=spec.seed,
        steps=spec.steps,
        async_level=spec.async_level,
        model_id=model_id(spec.model),
        model=spec.model,
        tasks=spec.tasks,
        recipe=spec.recipe,
        sampling=spec.sampling,
        length_reward=spec.length_reward,
        validation=spec.validation,
        storage=spec.storage,
        shard_size=spec.relay_server.shard_bytes,
        addresses=addresses,
        roster=identity.roster,
        run_key=identity.run_key,
    )


def model_id(model: ModelSource) -> str:
    """A name for the base model that goes into every rollout file."""
    if model.hugging_face is not None:
        return f"{model.hugging_face}@{model.revision}"[:253]
    if model.path is not None:
        return model.path
    if model.generated is None:
        raise ValueError("spec.model: must have exactly one of huggingFace, path, generated")
    return f"generated/{model.generated.name}"


def config_hashes(config: RunConfig) -> dict[str, str]:
    """Digest of the configuration by component. Only the orchestrator reads the list of relays: another relay restarts nothing else."""
    without_relays = config.model_copy(update={"addresses": config.addresses.model_copy(update={"relays": []})})
    shared = digest(without_relays.to_json())
    return {
        "orchestrator": digest(config.to_json()),
        **dict.fromkeys(("discovery", "trainer", "relay", "validator"), shared),
    }


def _prepare(run: TrainingRun) -> Object:
    """The Job that makes the base model and the task table. It has no digest of the configuration: what it made is for good."""
    name = run.metadata.name
    container = Container(
        name="prepare",
        image=names.IMAGES["trainer"],
        command=["python", "-m", "shoal.environments.prepare"],
        role="prepare",
        mounts=(config_map(names.config(name)), *role_and_store(name, None, run.spec.storage)),
        resources=run.spec.trainer.resources,
    )
    template = pod_template(name, "prepare", [container], grace_seconds=20, restart_policy="OnFailure")
    return job(names.prepare(name), name, "prepare", template, backoff_limit=PREPARE_BACKOFF_LIMIT)


def _own_kinds(run: TrainingRun, *, work: bool) -> list[Object]:
    """RelayServer, Validator and InferencePool of the run; scaled to zero when there is no work."""
    name, spec = run.metadata.name, run.spec
    pool, relay, validator = spec.inference_pool, spec.relay_server, spec.validator

    def custom(kind: str, child_name: str, component: str, content: Object, replicas: int) -> Object:
        metadata = {"name": child_name, "labels": names.labels(name, component)}
        full = {"run": name, **content, "replicas": replicas if work else 0}
        return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": full}

    return [
        custom(
            "RelayServer",
            names.relay(name),
            "relay",
            relay.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"replicas", "shard_bytes"}),
            relay.replicas,
        ),
        custom(
            "Validator",
            names.validator(name),
            "validator",
            validator.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"replicas"})
            | {"storage": spec.storage.model_dump(mode="json", by_alias=True, exclude_none=True)},
            validator.replicas,
        ),
        custom(
            "InferencePool",
            names.pool(name, pool.name),
            "pool",
            {"pool": pool.name}
            | pool.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"name", "replicas"}),
            pool.replicas,
        ),
    ]
