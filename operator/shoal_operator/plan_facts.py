"""A TrainingRun as the planner sees it. Pure. Called by `shoal plan`, and by the reconciler for the condition `Fits`."""

import re

from shoal.contracts.algorithm import Clip
from shoal.contracts.file_size import MAX_FILE_BYTES, largest_bytes
from shoal.contracts.protocol import RunProgress
from shoal.contracts.recipe import Recipe
from shoal.planner.facts import WIDTH, PoolFacts, RunFacts
from shoal.planner.findings import Misfit, certain
from shoal.planner.memory import ADAPTERS, EXPERT_MATRICES, Adapters, Method, OnHost
from shoal.planner.model_shape import parameters_in
from shoal.planner.rates import Gpu, gpu_named
from shoal_operator.api import TrainingRun
from shoal_operator.api.base import quantity_value
from shoal_operator.api.inference_pool import InferencePoolTemplate
from shoal_operator.api.pods import Gpus
from shoal_operator.api.relay_server import RelayServerTemplate
from shoal_operator.api.validator import ValidatorTemplate
from shoal_operator.api.volumes import Volume
from shoal_operator.children.claims import claimed, temporary

GIB = 1 << 30
METHODS: dict[tuple[bool, bool], Method] = {
    (False, False): "Full", (False, True): "Full, offloaded", (True, False): "LoRA", (True, True): "LoRA, offloaded",
}  # fmt: skip
"""By adapters and offloading."""
NAME_SHARE = 0.9
WIDEST = 4
"""Bytes of a parameter in float32, the widest type that is served: a version has at least a quarter of its bytes as parameters."""
_QUANTISED = re.compile(r"(?i)(awq|gptq|fp8|int[48]|[-_]4bit|[-_]8bit|gguf|mxfp4|nvfp4)")


def named_parameters(run: TrainingRun) -> int | None:
    """Parameters by the name of the base model; None where the name does not say them, or its weights are not halves."""
    name = run.spec.model.hugging_face
    return None if name is None or _QUANTISED.search(name) else parameters_in(name)


def run_facts(run: TrainingRun) -> RunFacts | None:
    """The facts of a run of mode Train; None for another mode.

    Of relays and validators that others made for the run only the defaults are known here, and no volume or GPU of theirs; of their pools nothing.
    """
    spec = run.spec
    if spec.mode != "Train" or spec.steps is None:
        return None
    recipe, trainer = spec.recipe, spec.trainer
    relays, judges = spec.relay_server or RelayServerTemplate(), spec.validator or ValidatorTemplate()
    settings, store = trainer.settings, spec.storage
    return RunFacts(
        name=run.metadata.name,
        steps=spec.steps,
        prompts_per_step=recipe.prompts_per_step,
        group_size=recipe.group_size,
        rows_each=recipe.rows_each,
        groups_per_file=spec.sampling.groups_per_submission,
        sequence_tokens=recipe.max_sequence_length,
        pack_tokens=recipe.pack_length or recipe.max_sequence_length,
        completion_tokens=spec.sampling.max_completion_tokens,
        learning_rate=recipe.learning_rate,
        async_level=spec.async_level,
        filtered=recipe.online_filter == "TaskReward",
        old_share=1.0 - 1.0 / recipe.optimizer_steps,
        reference=recipe.asks_reference,
        behaviour=asks_behaviour(recipe),
        benchmarks=spec.evaluation is not None,
        method=METHODS[settings.lora is not None, settings.cpu_offload],
        recomputes={"On": True, "Off": False, "Auto": None}[settings.activation_recomputation],
        kept_states=settings.kept_states,
        state_every=settings.state_every if trainer.islands is None else 1,
        trainer_pods=trainer.replicas,
        trainer_ranks=trainer.processes,
        trainer_gpus=trainer.gpu.count,
        trainer_gpu=_named(trainer.gpu),
        scratch=_bytes(claimed(trainer.scratch_volume, trainer.scratch_size).size),
        store=_bytes(claimed(spec.store_volume, store.folder_size).size) if store.is_folder else None,
        anchor_every=spec.broadcast.anchor_every,
        shard_bytes=spec.broadcast.shard_bytes,
        relays=relays.replicas,
        relay_versions=relays.kept_versions,
        relay_disk=_bytes(claimed(relays.cache_volume, relays.cache_size).size)
        if spec.relay_server_ref is None
        else None,
        relay_requests=relays.rate_limits.requests_per_second,
        relay_connection_bytes=relays.rate_limits.bytes_per_second,
        validators=judges.replicas,
        validator_gpus=judges.gpu.count,
        validator_gpu=_named(judges.gpu),
        validator_weights=judges.validation.weights_memory_bytes,
        proof_share=judges.validation.proof_rows_share,
        proof_floor=judges.validation.proof_rows_floor,
        probation_files=judges.validation.probation_files,
        pools=tuple(_pool(pool) for pool in spec.inference_pools),
        on_host=OnHost(**settings.offloaded.model_dump()),
        sharing=settings.sharing,
        tokens_travel=settings.expert_parallel == "Tokens",
        adapters=ADAPTERS
        if settings.lora is None
        else Adapters(settings.lora.rank, len(EXPERT_MATRICES.intersection(settings.lora.target_modules))),
        muon=recipe.muon is not None,
        reward_model=recipe.process_rewards is not None,
        islands=trainer.islands is not None,
        trainer_temporary=_temporary(trainer.temporary_volume),
        validator_temporary=_temporary(judges.temporary_volume),
        file_bytes=_file_bytes(recipe, spec.sampling.groups_per_submission, spec.sampling.max_completion_tokens),
    )


def _file_bytes(recipe: Recipe, groups: int, completion_tokens: int) -> int:
    rows = groups * recipe.group_size * recipe.rows_each
    return min(MAX_FILE_BYTES, largest_bytes(rows, recipe.max_sequence_length, completion_tokens))


def asks_behaviour(recipe: Recipe) -> bool:
    """As `training.objectives.needs_behaviour`, which needs torch. Of an objective of the run's own only cap and correction are known."""
    correction = recipe.mismatch_correction
    recomputed = correction is not None and correction.probabilities == "Recomputed"
    recipes = [recipe, *(recipe.of_source(each.name) for each in recipe.sources or [])]
    capped = any(isinstance(each.loss, Clip) and each.loss.importance_cap is not None for each in recipes)
    return any(each.objective in ("decoupled_ppo", "dppo") for each in recipes) or capped or recomputed


def misfits(run: TrainingRun, progress: RunProgress | None, *, volumes: bool = True) -> tuple[Misfit, ...] | None:
    """What cannot work, by the size of an announced version, else by the size in the model's name; None where neither is known.

    A name rounds: `8B` may be 7.6 or 8.2. It counts with `NAME_SHARE` of what it says. `volumes`: their sizes are enforced.
    """
    facts = run_facts(run)
    if facts is None:
        return None
    if progress is not None and progress.version_bytes:
        last = progress.last_step
        seconds = last.finished_unix - last.started_unix if last is not None and last.trained else None
        version = progress.version_bytes
        return tuple(certain(facts, version, version // WIDEST, seconds, volumes=volumes))
    named = named_parameters(run)
    if named is None:
        return None
    least = int(NAME_SHARE * named)
    return tuple(certain(facts, WIDTH * least, least, volumes=volumes))


def _temporary(volume: Volume | None) -> int | None:
    claim = temporary(volume)
    return None if claim is None else _bytes(claim.size)


def _pool(pool: InferencePoolTemplate) -> PoolFacts:
    engine = pool.engine
    gpus = min(pool.gpu.count * engine.hosts, engine.ranks)
    return PoolFacts(
        name=pool.name,
        replicas=pool.replicas,
        open=pool.open,
        gpus=gpus,
        gpu=_named(pool.gpu),
        volume=None if pool.weights_claim is not None else _bytes(claimed(pool.weights_volume, pool.weights_size).size),
        disk=pool.requirements.disk_gib * GIB,
        max_sequences=engine.max_sequences,
        memory_share=engine.gpu_memory_utilization,
        stages=engine.pipeline_parallel_size,
    )


def _named(gpu: Gpus) -> Gpu | None:
    return gpu_named(gpu.type) if gpu.type is not None else None


def _bytes(quantity: str | int) -> int:
    return int(quantity_value(quantity))
