"""`config/run.json` of a run, and its digests by component, which make pods restart. Pure."""

from collections.abc import Mapping, Sequence

from shoal.contracts.model_source import ModelSource
from shoal.contracts.pools import EngineSettings, PoolTerms, Requirements
from shoal.contracts.roster import ROLES, Roster, first_roster
from shoal.contracts.run import Addresses, RunConfig
from shoal.contracts.signed import Signed
from shoal_operator.api import TrainingRun
from shoal_operator.api.inference_pool import PoolFields
from shoal_operator.children.islands import island_terms
from shoal_operator.children.own_kinds import References, relays_of, validation_of
from shoal_operator.children.pods import GPU_RESOURCE
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
        **spec.settings(),
        run=run.metadata.name,
        model_id=model_id(spec.model),
        trainer=spec.trainer.settings,
        islands=island_terms(run, addresses, islands),
        validation=validation_of(run, references),
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
    own = [_terms(pool.name, pool) for pool in run.spec.inference_pools]
    others = sorted(references.pools, key=lambda pool: (pool.spec.open, pool.metadata.name))
    # One name, one set of terms: the run's own before others', closed before open.
    terms: dict[str, PoolTerms] = {}
    for each in (*own, *(_terms(pool.spec.pool, pool.spec) for pool in others)):
        terms.setdefault(each.name, each)
    return list(terms.values())


def _terms(name: str, pool: PoolFields) -> PoolTerms:
    return PoolTerms(
        name=name,
        open=pool.open,
        requirements=_asked(pool),
        admission=pool.admission,
        gpus=pool.gpu.count * pool.engine.hosts,
        sampler=pool.sampler,
        quantization=pool.quantization,
        engine=pool.engine.division if pool.open and pool.gpu.count else EngineSettings(),
    )


def _asked(pool: PoolFields) -> Requirements:
    """A pool whose own pods have GPUs invites no stranger's machine without those of one engine. A machine knows NVIDIA's only; of what a claim
    template gives nothing is known, and it is taken for NVIDIA's."""
    asked, resource = pool.requirements, pool.gpu.resource or GPU_RESOURCE
    if not pool.open or not pool.gpu.count or resource.partition("/")[0] != GPU_RESOURCE.partition("/")[0]:
        return asked
    return asked.model_copy(update={"gpus": max(asked.gpus, pool.engine.ranks)})


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
    """Digest of the configuration by component. Relays, pools and parts of leases are the orchestrator's
    matter: another one restarts nothing else (discovery reads its file again when it changes)."""
    addresses = config.addresses.model_copy(
        update={
            "relays": [],
            "public_relays": [],
            "public_discovery": None,
            "public_orchestrator": None,
            "runners": [],
        }
    )
    # Running parts learn of changed keys by themselves: only the part whose own key was changed starts again, with it.
    begun = {"roster": first_roster(config.roster)}
    shared = digest(
        config.model_copy(update={"addresses": addresses, "pools": [], "rollouts": None, **begun}).to_json()
    )
    hashes = {
        "orchestrator": digest(config.to_json()),
        **dict.fromkeys(("discovery", "trainer", "relay", "tracker", "ui"), shared),
        # Validators ask runners too.
        "validator": digest(f"{shared} {runners}".encode()) if (runners := config.addresses.runners) else shared,
    }
    for role in ROLES:
        if role != "orchestrator" and (changes := config.roster.document.changes_of(role)):
            hashes[role] = digest(f"{hashes[role]} {changes[-1].new}".encode())
    return hashes
