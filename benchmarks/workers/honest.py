"""Honest files of every mode before the real judge, each row of each checked: `false_rejects`, and `false_rejects_fp8` of rounded weights.

In: nothing. Out: files and rejects by mode, and the upper limit of the rate. Files come from `honest_engine`: of one version between swaps, of
several versions, parts of leases, and rests of these that another node finishes. The model is tiny, in float32, where thresholds are tightest.
Rounded weights have thresholds of their own, which are calibrated first as `prepare` does.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.trust.interval import clopper_pearson
from benchmarks.workers.honest_engine import ENVIRONMENT, PUBLIC, TASKS, Asked, beacon, weights_digest
from shoal.contracts.model_source import GeneratedModel
from shoal.contracts.proof_profile import PROFILE_FILE, ProofProfile
from shoal.contracts.protocol import ValidationJob
from shoal.contracts.thresholds import ProofThresholds
from shoal.contracts.validation import Validation
from shoal.environments.generated_model import random_model, tokenizer_for
from shoal.environments.prompts import prompt_tokens
from shoal.proofs.calibration import Effort, RoundedModel, calibrate
from shoal.validation.facts import Facts
from shoal.validation.judge import judge
from shoal.validation.models import load_model
from shoal.validation.policies import LoadedPolicy

ROOT = Path(__file__).resolve().parents[2]
FILES_A_VERSION = 24
ASKED = (
    Asked("one_version", 300, FILES_A_VERSION),
    Asked("parts", 360, 2 * FILES_A_VERSION),
    Asked("several_versions", 400, FILES_A_VERSION // 4),
)
STEP_SIZE = 1e-3
"""Standard deviation of a weight's change from one version to the next: far more than an update makes."""
ROUNDED = tuple(
    Asked(kind, 50, files_a_version, quantization="fp8")
    for kind, files_a_version in (("one_version", FILES_A_VERSION), ("several_versions", FILES_A_VERSION // 4))
)
CONTROLS = 10
"""Files of rounded weights that are judged by the published ones, too: each must be found."""
EFFORT = Effort(sequences=32, max_tokens=72, seconds=60.0, file_sequences=8, learning_rate=STEP_SIZE, updates=1)
VERSIONS = 1 + max(each.files // each.files_a_version for each in ASKED)
"""A few megabytes each."""
ENDING = 1.5
"""Makes answers end after some tens of tokens, a few of them early."""
THRESHOLDS = ProofThresholds(max_exponent_mismatches=2, max_mantissa_error_mean=0.1, max_mantissa_error_median=0.0)
"""Of float32 and a tiny model; other weights are far beyond them."""
LIMIT_SECONDS = 3600.0


def false_rejects(asked: tuple[Asked, ...] = ASKED) -> dict[str, Any]:
    """Make all files, judge each; some minutes of a core, a gigabyte of memory. All files have rounded weights, or none has."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_versions(folder / "versions")
        profile = _calibrated(folder / "versions") if asked[0].quantization is not None else None
        (folder / "files").mkdir()
        (folder / "asked.json").write_text(json.dumps([asdict(each) for each in asked]))
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/workloads:{ROOT}/operator", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.workers.honest_engine", str(folder)]
        with (folder / "log").open("w+") as log:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=LIMIT_SECONDS, check=False
            )
            log.seek(0)
            if done.returncode != 0:
                raise RuntimeError(f"the engine ended with {done.returncode}:\n{log.read()[-3000:]}")
        found = _judged(folder, profile)
        if profile is None:
            return found
        controls = _judged(folder, profile, published=True)
        return found | {
            "quantization": profile.quantization,
            "thresholds": profile.thresholds.model_dump(),
            "published_weights_judged": controls["total_files"],
            "published_weights_found": controls["rejected"],
        }


def false_rejects_fp8() -> dict[str, Any]:
    """The same of 100 files whose weights are rounded; some minutes of a core."""
    return false_rejects(ROUNDED)


def _calibrated(versions: Path) -> ProofProfile:
    """Thresholds of rounded weights, put beside each version: an engine leaves out the dimensions that a profile masks."""
    rounded = RoundedModel("fp8", versions / "0")
    model = load_model(rounded.folder, quantization=rounded.quantization)
    tokenizer = AutoTokenizer.from_pretrained(rounded.folder)
    prompts = [prompt_tokens(tokenizer, ENVIRONMENT, task, 24, None) for task in TASKS[: EFFORT.sequences]]
    profile = calibrate(model, prompts, EFFORT, lambda *_: None, as_rounded=rounded)
    for folder in versions.iterdir():
        (folder / PROFILE_FILE).write_bytes(profile.to_json())
    return profile


def _judged(folder: Path, profile: ProofProfile | None = None, *, published: bool = False) -> dict[str, Any]:
    """`profile`: of files of rounded weights. `published`: some of these are judged by the weights as they are published, which must find them."""
    torch.set_num_threads(1)
    facts, held = _facts(folder, profile), _Versions(folder / "versions", profile, rounded=not published)
    files, rejected, left_out, crossing = Counter[str](), Counter[str](), 0, 0
    evidence = ""
    paths = sorted((folder / "files").glob("*.json"), key=lambda path: int(path.stem))
    for path in paths[:CONTROLS] if published else paths:
        terms = json.loads(path.read_text())
        kind, versions = terms.pop("kind"), terms.pop("versions")
        if kind == "several_versions" and len(versions) == 1:
            kind = "one_version_of_several"
        step = terms["step"]
        job = ValidationJob(
            claim="aa" * 16, run=PUBLIC.run, size=path.with_suffix(".parquet").stat().st_size, beacon=beacon(step).hex(),
            min_version=max(0, step - PUBLIC.async_level), max_version=step, on_probation=True, sampler=PUBLIC.sampler,
            **terms,
        )  # fmt: skip
        verdict = judge(path.with_suffix(".parquet"), job, facts, held, random.Random(path.stem))
        files[kind] += 1
        rejected[kind] += verdict.outcome != "accept"
        left_out += len(verdict.left_out)
        crossing += len(versions) > 1
        evidence = evidence or (f"{verdict.reason}: {verdict.evidence}" if verdict.outcome != "accept" else "")
    total, wrong = files.total(), rejected.total()
    return {
        "files": dict(files),
        "rejected": wrong,
        "rejected_by_kind": dict(+rejected),
        "evidence": evidence,
        "rate_upper_95": clopper_pearson(wrong, total)[1],
        "rows_left_out": left_out,
        "files_of_two_versions": crossing,
        "total_files": total,
    }


def _make_versions(folder: Path) -> None:
    """Checkpoints of a random model that moves a step from each to the next."""
    torch.manual_seed(11)
    targets = list(PUBLIC.length_reward.targets) if PUBLIC.length_reward is not None else []
    tokenizer = tokenizer_for(ENVIRONMENT, targets, seed=11)
    model: Any = random_model(GeneratedModel(hidden_size=128, layers=2), tokenizer, PUBLIC.max_sequence_length)
    prompts = [prompt_tokens(tokenizer, ENVIRONMENT, task, targets[0], None) for task in TASKS[:8]]
    with torch.no_grad():
        ends = [model.model(input_ids=torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]
        mean = torch.cat(ends).mean(dim=0)
        model.lm_head.weight[model.config.eos_token_id] = ENDING * mean / mean.square().sum()
        for version in range(VERSIONS):
            model.save_pretrained(folder / str(version))
            tokenizer.save_pretrained(folder / str(version))
            for parameter in model.parameters():
                parameter += STEP_SIZE * torch.randn_like(parameter)


def _facts(folder: Path, profile: ProofProfile | None) -> Facts:
    tokenizer = AutoTokenizer.from_pretrained(folder / "versions" / "0")
    return Facts(
        run=PUBLIC.run,
        model_id=PUBLIC.model_id,
        environment=ENVIRONMENT,
        environment_digest=PUBLIC.environment_digest,
        tasks=TASKS,
        tokenizer=tokenizer,
        eos_token_ids=frozenset({tokenizer.eos_token_id}),
        vocabulary=len(tokenizer),
        hidden_size=128,
        group_size=PUBLIC.group_size,
        max_sequence_length=PUBLIC.max_sequence_length,
        sampling=PUBLIC.sampling,
        length_reward=PUBLIC.length_reward,
        validation=Validation(
            proof_rows_share=1.0, min_eos_probability=0.0, thresholds=None if profile is not None else THRESHOLDS
        ),
        quantization=profile.quantization if profile is not None else None,
        async_level=PUBLIC.async_level,
        several_versions=True,
    )


class _Versions:
    """All versions, each loaded once."""

    def __init__(self, folder: Path, profile: ProofProfile | None, *, rounded: bool) -> None:
        self._folder, self._profile = folder, profile
        self._quantization = profile.quantization if profile is not None and rounded else None
        self._held: dict[int, LoadedPolicy] = {}

    def digest(self, version: int) -> str:
        return weights_digest(version)

    def get(self, version: int) -> LoadedPolicy:
        if version not in self._held:
            model = load_model(self._folder / str(version), quantization=self._quantization)
            self._held[version] = LoadedPolicy(version, weights_digest(version), model, self._profile)
        return self._held[version]
