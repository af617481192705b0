"""Calibrating a checkpoint on tasks of an environment: prompts in, proof profile out.

In: a checkpoint's folder, an environment and its tasks. Out: a `ProofProfile`. Called by `prepare` for a run's base model, with a bound on its time,
and by `shoal calibrate`. What is measured, and how, is in `proofs.calibration`.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal import telemetry
from shoal.contracts.pools import Quantization
from shoal.contracts.prompts import PromptTerms
from shoal.contracts.proof_profile import PROFILE_FILE, ProofProfile, WrongProfile, read_profile
from shoal.contracts.run import RunConfig
from shoal.contracts.tasks import Task
from shoal.environments.base import Environment
from shoal.environments.prompts import load_tokenizer, prompt_tokens
from shoal.proofs import CannotCalibrate
from shoal.toploc.top_points import TOP_K

PROMPTS = 512
"""Tasks that prompts are made of; more sequences than that take them again, with other samples."""
RUN_SEQUENCES = 384
RUN_SECONDS = 30.0
"""Seconds that prepare spends on decoding; the demo's model needs a few. None rejected of 384 chunks bounds the rate below 1 %."""
RUN_TOKENS = 256
"""Tokens of a completion that prepare looks at: eight chunks. Errors hardly grow with the position."""
CPU_BYTES = 4 << 30
"""Weights up to which prepare calibrates without a GPU: a larger model would take a processor hours."""
LARGE_SECONDS = 600.0
"""Seconds for a larger model on GPUs. At 32B a batch of 256 tokens takes about 20 s: 30 batches, a thousand chunks."""
LONGEST_PROMPT = 0.75
"""Share of the longest sequence that a prompt may take where completions are longer than the rest; else completions need their length only."""
REPORT_EVERY = 128


def of_run(
    config: RunConfig, environment: Environment, tasks: Sequence[Task], folder: Path, terms: PromptTerms | None
) -> ProofProfile | None:
    """The profile of a run's base model: the one that lies in its folder, else a new one; None for a model too large to measure here.

    Raises `WrongProfile` for a file that is not of this model. Raises `CannotCalibrate` for a model or prompts that do not serve, and where strangers
    may join a run whose model is too large.
    """
    log = telemetry.get_logger()
    width = hidden_size(folder)
    if width < TOP_K:
        raise CannotCalibrate(f"hidden size {width}: a proof needs {TOP_K} values of one token; take a wider model")
    given = read_profile(folder, width)
    if given is not None:
        if (served := _served_in(folder)) not in (None, given.dtype):
            raise WrongProfile(
                f"{PROFILE_FILE}: was measured in {given.dtype}, but engines serve this model in {served}, as its config.json says, whose honest"
                " proofs differ by other amounts: calibrate again (`shoal calibrate`, without --dtype)"
            )
        if given.quantization != config.quantization:
            raise WrongProfile(
                f"{PROFILE_FILE}: was measured with quantization {given.quantization or 'none'}, but rollouts.quantization of this run is"
                f" {config.quantization or 'none'}, whose honest proofs differ by other amounts: calibrate again (`shoal calibrate --quantization`)"
            )
        log.info("the model has its own proof profile", masked=len(given.masked_dimensions), dtype=given.dtype)
        return given
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if size > CPU_BYTES and not _has_gpu():
        _refuse_strangers(config, size)
        if config.quantization is not None:
            raise CannotCalibrate(
                f"it has {size / 1e9:.1f} GB of weights and prepare has no GPU, but rollouts.quantization needs thresholds of its own: set"
                f" spec.prepare.gpu.count, or put a {PROFILE_FILE} of `shoal calibrate --quantization` beside the model"
            )
        log.warning(
            "proofs are not calibrated: the model is too large for a CPU; published thresholds apply and no dimension is masked,"
            " give prepare a GPU (spec.prepare.gpu) or run `shoal calibrate` on the model first",
            bytes=size,
            allowed_bytes=CPU_BYTES,
        )
        return None
    from shoal.proofs.calibration import Effort  # torch takes seconds to import, and a profile that is there needs none

    effort = Effort(
        sequences=RUN_SEQUENCES,
        max_tokens=min(RUN_TOKENS, config.sampling.max_completion_tokens),
        seconds=RUN_SECONDS if size <= CPU_BYTES else LARGE_SECONDS,
        file_sequences=rows_of_a_check(config),
        learning_rate=config.recipe.learning_rate,
        updates=config.recipe.optimizer_steps,
        seed=config.seed,
    )
    targets = config.length_reward.targets if config.length_reward is not None else [None]
    profile = measure(
        folder,
        environment,
        tasks,
        targets,
        config.recipe.max_sequence_length,
        effort,
        terms,
        quantization=config.quantization,
    )
    log.info(
        "proofs calibrated",
        thresholds=profile.thresholds.model_dump(),
        masked=len(profile.masked_dimensions),
        honest_chunks=profile.size.chunks,
        false_rejects_below=round(profile.honest.rejected_chunks.high, 5),
        accepted={control.name: control.chunks.share for control in profile.controls},
    )
    return profile


def _has_gpu() -> bool:
    from shoal.proofs.placement import gpus  # torch takes seconds to import, and a small model needs none

    return bool(gpus())


def _refuse_strangers(config: RunConfig, size: int) -> None:
    """Raises CannotCalibrate where a pool is open: without a calibration and its mask, proofs that need no forward pass are accepted."""
    if pools := [pool.name for pool in config.pools if pool.open]:
        raise CannotCalibrate(
            f"it has {size / 1e9:.1f} GB of weights and prepare has no GPU, but pool {pools[0]} is open to strangers, whose proofs need a"
            f" calibration: set spec.prepare.gpu.count, or put a {PROFILE_FILE} of `shoal calibrate` beside the model, or close the pool"
        )


def rows_of_a_check(config: RunConfig) -> int:
    """Rows whose proofs are verified together: those of a file, of which on probation every one is.

    A file with continuations has more rows than are measured here, so that no bound would come of it: there, those that are drawn first of its
    completions and of its continuations once its node is past probation.
    """
    completions = config.sampling.groups_per_submission * config.recipe.group_size
    if config.recipe.vine is None:
        return completions
    share, floor = config.validation.proof_rows_share, config.validation.proof_rows_floor
    strata = (completions, completions * (config.recipe.rows_each - 1))
    return sum(min(rows, max(floor, math.ceil(share * rows))) for rows in strata)


def measure(
    folder: Path,
    environment: Environment,
    tasks: Sequence[Task],
    targets: Sequence[int | None],
    max_length: int,
    effort: Any,
    terms: PromptTerms | None,
    dtype: str = "auto",
    serve: Callable[..., Any] | None = None,
    quantization: Quantization | None = None,
) -> ProofProfile:
    """Calibrate the checkpoint in `folder` in its own type, or another `dtype`, on GPUs if there are any; `effort` is `proofs.calibration.Effort`.

    Prompts ask for `targets` (tokens, or None) in turn; those that leave little room below `max_length` tokens are left out. `serve` is a
    `proofs.calibration.Serve` that is told the type of serving first; the model makes room on the GPU for it. `quantization`: how
    the run rounds weights before they sample.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from shoal.models.rounded import round_in_place
    from shoal.proofs.calibration import RoundedModel, Served, calibrate, dtype_name
    from shoal.proofs.placement import Placement, gpus

    disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, trust_remote_code=False, use_safetensors=True
    )
    model = model.eval()
    if quantization is not None:
        round_in_place(model, quantization)
    placement = Placement(model, gpus())
    placement.apply()
    tokenizer = load_tokenizer(folder)
    prompts = [
        prompt_tokens(tokenizer, environment, task, targets[number % len(targets)], terms)
        for number, task in enumerate(tasks[:PROMPTS])
    ]
    longest = max(int(LONGEST_PROMPT * max_length), max_length - effort.max_tokens)
    fitting = [prompt for prompt in prompts if prompt and len(prompt) <= longest]
    if not fitting:
        raise CannotCalibrate(
            f"none of {len(prompts)} prompts takes at most {longest} of a sequence's {max_length} tokens:"
            " allow longer sequences"
        )
    room = max_length - max(len(prompt) for prompt in fitting)
    effort = replace(effort, max_tokens=min(effort.max_tokens, room))
    log = telemetry.get_logger()

    def report(what: str, done: int, wanted: int) -> None:
        if done % REPORT_EVERY == 0 or done == wanted:
            log.info("calibrating proofs", doing=what, done=done, wanted=wanted)

    def engine(*asked: Any) -> list[Served]:
        assert serve is not None
        model.to("cpu")
        torch.cuda.empty_cache()  # nothing where there is no GPU
        try:
            return list(serve(dtype_name(model), *asked))
        finally:
            placement.apply()

    as_rounded = RoundedModel(quantization, folder) if quantization is not None else None
    return calibrate(model, fitting, effort, report, engine if serve is not None else None, as_rounded)


def hidden_size(folder: Path) -> int:
    """Width of the model in `folder`, from its configuration."""
    return int(json.loads((folder / "config.json").read_bytes())["hidden_size"])


def _served_in(folder: Path) -> str | None:
    """The data type in which engines serve the model in `folder`; None where its configuration has none, which engines refuse."""
    settings = json.loads((folder / "config.json").read_bytes())
    dtype = settings.get("dtype", settings.get("torch_dtype"))
    return None if dtype is None else str(dtype)
