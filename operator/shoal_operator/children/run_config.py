"""`config/run.json` of a run, and its digests by component, which make pods start anew. Pure."""

from collections.abc import Mapping, Sequence

from shoal.contracts.datasets import GenerateSettings
from shoal.contracts.pools import PoolTerms
from shoal.contracts.recipe import ModelSource
from shoal.contracts.roster import Roster
from shoal.contracts.run import Addresses, RunConfig
from shoal.contracts.signed import Signed
from shoal_operator.api import TrainingRun
from shoal_operator.children.islands import island_terms
from shoal_operator.children.own_kinds import References, relays_of, validation_of
from shoal_operator.children.workloads import digest


def run_config(
    run: TrainingRun,
    references: References,
    addresses: Addresses,
    roster: Signed[Roster],
    run_key: str,
    islands: Mapping[str, str],
) -> RunConfig:
    """`config/run.json` of a run. `islands`: public key of each, by name."""
    spec = run.spec
    return RunConfig(
        run=run.metadata.name,
        mode=spec.mode,
        seed=spec.seed,
        steps=spec.steps or 0,
        async_level=spec.async_level,
        model_id=model_id(spec.model),
        model=spec.model,
        tasks=spec.tasks,
        recipe=spec.recipe,
        sampling=spec.sampling,
        length_reward=spec.length_reward,
        generate=spec.generate or GenerateSettings(),
        sft=spec.sft,
        evaluation=spec.evaluation,
        trainer=spec.trainer.settings,
        islands=island_terms(run, addresses, islands),
        stability=spec.stability,
        roll_back=spec.roll_back,
        failure_policy=spec.failure_policy,
        validation=validation_of(run, references),
        storage=spec.storage,
        shard_size=spec.broadcast.shard_bytes,
        anchor_every=spec.broadcast.anchor_every,
        kept_versions=relays_of(run, references).kept_versions,
        pools=list(pool_terms(run, references)),
        addresses=addresses,
        roster=roster,
        run_key=run_key,
    )


def pool_terms(run: TrainingRun, references: References) -> Sequence[PoolTerms]:
    """Who is invited to which pool: the run's own ones, then those that others made for it. Nobody is to a run of mode SFT."""
    if run.spec.mode == "SFT":
        return []
    own = [
        PoolTerms(
            name=pool.name,
            open=pool.open,
            requirements=pool.requirements,
            admission=pool.admission,
            gpus=pool.gpu.count,
            group_size=pool.group_size,
        )
        for pool in run.spec.inference_pools
    ]
    others = [
        PoolTerms(
            name=pool.spec.pool,
            open=pool.spec.open,
            requirements=pool.spec.requirements,
            admission=pool.spec.admission,
            gpus=pool.spec.gpu.count,
            group_size=pool.spec.group_size,
        )
        for pool in sorted(references.pools, key=lambda pool: (pool.spec.open, pool.metadata.name))
    ]
    # One name, one set of terms: the run's own before others', closed before open.
    terms: dict[str, PoolTerms] = {}
    for each in (*own, *others):
        terms.setdefault(each.name, each)
    return list(terms.values())


def model_id(model: ModelSource) -> str:
    """A name for the base model that goes into every rollout file."""
    if model.hugging_face is not None:
        return f"{model.hugging_face}@{model.revision}"[:253]
    if model.path is not None:
        return model.path
    if model.run is not None:
        return f"run/{model.run}"
    if model.generated is None:
        raise ValueError("spec.model: must have exactly one of huggingFace, path, generated, run")
    return f"generated/{model.generated.name}"


def config_hashes(config: RunConfig) -> dict[str, str]:
    """Digest of the configuration by component. Relays and pools are the orchestrator's matter: another one
    restarts nothing else (discovery reads its file again when it changes)."""
    addresses = config.addresses.model_copy(
        update={
            "relays": [],
            "public_relays": [],
            "public_discovery": None,
            "public_orchestrator": None,
            "runners": [],
        }
    )
    shared = digest(config.model_copy(update={"addresses": addresses, "pools": []}).to_json())
    return {
        "orchestrator": digest(config.to_json()),
        **dict.fromkeys(("discovery", "trainer", "relay", "ui"), shared),
        # Validators ask runners too.
        "validator": digest(f"{shared} {runners}".encode()) if (runners := config.addresses.runners) else shared,
    }
