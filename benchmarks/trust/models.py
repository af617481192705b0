"""The models that are measured: the demo's base model, made as prepare makes it, its first update, and variants of both.

In: the demo's configuration and an empty folder. Out: checkpoint folders with their proof profiles.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.trust import weight_sets
from shoal import environments
from shoal.cli.calibrate import calibrate as calibrate_model
from shoal.contracts.proof_profile import PROFILE_FILE
from shoal.contracts.run import RunConfig
from shoal.environments import proof_calibration
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.generated_model import make_model
from shoal.proofs.calibration import Effort


@dataclass(frozen=True)
class TrainedModels:
    """`base` is version 0; `current` comes after the demo's first step, `stepped` after a step past the warm-up, both made from it."""

    base: Path
    current: Path
    stepped: Path


def make_models(config: RunConfig, home: Path) -> TrainedModels:
    """A minute on one core."""
    base, targets = home / "base", targets_of(config)
    make_base(config, base)
    calibrate(config, base)
    rates = weight_sets.FIRST_STEP_RATES
    return TrainedModels(
        base,
        weight_sets.train(base, home / "current", rates, targets, seed=1),
        weight_sets.train(base, home / "stepped", weight_sets.FULL_STEP_RATES, targets, seed=1),
    )


def targets_of(config: RunConfig) -> list[int | None]:
    """The target lengths that are asked for."""
    return list(config.length_reward.targets) if config.length_reward is not None else [None]


def make_base(config: RunConfig, folder: Path) -> None:
    """Write the checkpoint that prepare makes, without a proof profile."""
    environment = environments.load(config.tasks.judged_by)
    assert isinstance(environment, Arithmetic)
    assert config.model.generated is not None
    length, targets = config.recipe.max_sequence_length, targets_of(config)
    make_model(folder, environment, targets, config.model.generated, length, config.seed, lambda *_: None)


def calibrate(config: RunConfig, folder: Path) -> None:
    """Write the proof profile of a checkpoint, as prepare does."""
    environment = environments.load(config.tasks.judged_by)
    tasks = environment.tasks(config.tasks.count or 1024, config.seed)
    profile = proof_calibration.of_run(config, environment, tasks, folder, None)
    if profile is not None:
        (folder / PROFILE_FILE).write_bytes(profile.to_json())


def calibrate_engine(config: RunConfig, folder: Path) -> None:
    """The same as `shoal calibrate --engine` does it, in the checkpoint's type of serving, with prepare's effort."""
    effort = Effort(
        sequences=proof_calibration.RUN_SEQUENCES,
        max_tokens=min(proof_calibration.RUN_TOKENS, config.sampling.max_completion_tokens),
        seconds=600.0,
        file_sequences=config.sampling.groups_per_submission * config.recipe.group_size,
        learning_rate=config.recipe.learning_rate,
        updates=config.recipe.optimizer_steps,
        seed=config.seed,
    )
    length, targets = config.recipe.max_sequence_length, config.length_reward.targets if config.length_reward else ()
    calibrate_model(folder, config.tasks.judged_by, "auto", length, effort, None, print, targets=targets, engine=True)


def in_dtype(source: Path, target: Path, dtype: str) -> Path:
    """The checkpoint as it is served in `dtype` (a name of torch's), without a profile: that of another type says nothing here."""
    shutil.copytree(source, target)
    (target / PROFILE_FILE).unlink(missing_ok=True)
    tensors = load_file(source / weight_sets.TENSORS)
    changed = {name: tensor.to(getattr(torch, dtype)).contiguous() for name, tensor in tensors.items()}
    save_file(changed, target / weight_sets.TENSORS, metadata={"format": "pt"})
    edit(target / "config.json", {"dtype": dtype})
    return target


def for_long_completions(source: Path, target: Path, longest: int) -> Path:
    """The checkpoint with room for `longest` tokens, and with the padding token, which it never learnt to say, as its end: nothing stops early."""
    shutil.copytree(source, target)
    (target / PROFILE_FILE).unlink(missing_ok=True)
    held = json.loads((target / "config.json").read_text())
    end = {"eos_token_id": held["pad_token_id"]}
    edit(target / "config.json", {"max_position_embeddings": longest, **end})
    edit(target / "generation_config.json", end)
    tokenizer = json.loads((target / "tokenizer_config.json").read_text())
    edit(target / "tokenizer_config.json", {"eos_token": tokenizer["pad_token"]})
    return target


def edit(path: Path, changes: Mapping[str, object]) -> None:
    """Set fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(changes), indent=2) + "\n")
