"""`shoal calibrate`: measure a checkpoint's honest proof errors and write its proof profile beside its weights.

In: a checkpoint's folder and how much to measure. Out: `proof_profile.json` and a table. For models that prepare leaves alone because
of their size; for a bound on false rejects that prepare has no time for, and for another type of serving. Called by `main`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from shoal import accelerators, environments
from shoal.contracts.pools import Quantization
from shoal.contracts.proof_profile import PROFILE_FILE, ErrorRate, ProofProfile
from shoal.contracts.thresholds import ProofThresholds
from shoal.environments.base_checkpoint import checked_checkpoint
from shoal.environments.prompt_check import decided
from shoal.environments.prompts import load_tokenizer
from shoal.environments.proof_calibration import PROMPTS, measure
from shoal.environments.run_checks import CannotPrepare
from shoal.errors import InputWrong
from shoal.files import write_atomically
from shoal.proofs import CannotCalibrate
from shoal.proofs.calibration import Effort, Served

START_SECONDS = 900.0
"""Seconds that an engine may take to start: a large model is read and compiled first."""


def calibrate(
    model: Path,
    environment: str,
    dtype: str,
    max_length: int,
    effort: Effort,
    output: Path | None,
    write: Callable[[str], None],
    *,
    targets: Sequence[int] = (),
    engine: bool = False,
    quantization: Quantization | None = None,
) -> None:
    """Calibrate the checkpoint in `model`, with `engine` by vLLM's proofs too; `write` is told a line at a time. Raises InputWrong.

    `targets`: the lengths in tokens that a run's prompts ask for, in turn; none for a run without a length reward. `quantization`: its
    `rollouts.quantization`.
    """
    try:
        accelerators.check(os.environ, engine=engine)
    except accelerators.NoGpu as error:
        raise InputWrong(str(error)) from None
    if unused := accelerators.why_unused(os.environ, accelerators.read_machine(), engine=engine):
        write(f"this machine's GPUs stay unused: {unused}")
    try:
        folder = checked_checkpoint(model)
        loaded = environments.load(environment)
        tasks = loaded.tasks(PROMPTS, effort.seed)
        serve = partial(_serve, folder, max_length, effort, quantization) if engine else None
        terms = decided(None, folder, load_tokenizer(folder))
        profile = measure(
            folder, loaded, tasks, list(targets) or [None], max_length, effort, terms, dtype, serve, quantization
        )
    except (CannotPrepare, CannotCalibrate, ValueError) as error:
        said = str(error).removeprefix("spec.model.path: ").removeprefix(f"{model}: ")
        raise InputWrong(f"{model}: {said}") from None
    path = output or folder / PROFILE_FILE
    write_atomically(path, profile.to_json())
    for line in lines(profile):
        write(line)
    write(f"wrote {path}; copies of the weights include it from now on")


def _serve(
    folder: Path,
    max_length: int,
    effort: Effort,
    quantization: Quantization | None,
    dtype: str,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    masked: Sequence[int],
) -> list[Served]:
    """Completions and proofs of the checkpoint by a worker's engine, in a process of its own. Raises CannotCalibrate with its last words."""
    wanted = {
        "prompts": [list(prompt) for prompt in prompts], "max_tokens": max_tokens, "max_length": max_length,
        "dtype": dtype, "masked": list(masked), "seed": effort.seed, "seconds": effort.seconds,
        "quantization": quantization,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="shoal-calibrate-") as scratch:
        request, output, log = (Path(scratch) / name for name in ("request.json", "made.json", "engine.log"))
        request.write_text(json.dumps(wanted))
        command = [sys.executable, "-m", "shoal.inference.prove", str(folder), str(request), str(output)]
        with log.open("wb") as errors:
            try:
                ended = subprocess.run(
                    command, stdout=errors, stderr=errors, timeout=START_SECONDS + 2 * effort.seconds, check=False
                )
            except subprocess.TimeoutExpired as error:
                raise CannotCalibrate(
                    f"the engine did not finish within {error.timeout:.0f} s: ask for fewer --sequences or --max-tokens"
                ) from None
        if ended.returncode != 0:
            last = log.read_text(errors="replace").strip().splitlines()[-5:]
            raise CannotCalibrate(f"the engine ended with status {ended.returncode}: " + " | ".join(last))
        made = json.loads(output.read_bytes())
    return [
        Served(list(prompt), tokens, bytes.fromhex(proofs), seed)
        for prompt, (tokens, proofs, seed) in zip(prompts, made, strict=False)  # those that were begun in time
    ]


def lines(profile: ProofProfile) -> list[str]:
    """The profile for people."""
    limits, honest, size = profile.thresholds, profile.honest, profile.size
    said = [
        f"{size.sequences} sequences, {size.tokens} tokens, {size.chunks} chunks in {profile.dtype}{_of_rounding(profile)};"
        f" files of {size.file_sequences} sequences",
        f"masked dimensions: {len(profile.masked_dimensions)} of {profile.hidden_size}",
        f"thresholds: {limits.max_exponent_mismatches} mismatches of 128, mantissa error mean {limits.max_mantissa_error_mean:g}, "
        f"median {limits.max_mantissa_error_median:g}",
        *_of_file(limits),
        *_of_tokens(limits),
        f"honest proofs, largest seen: {honest.max_mismatches}, {honest.max_mantissa_error_mean:.3g}, {honest.max_mantissa_error_median:g}",
        f"{'':28}  {'chunks':>24}  {'files':>24}",
        f"{'honest, rejected':28}  {_rate(honest.rejected_chunks):>24}  {_rate(honest.rejected_files):>24}",
    ]
    said += [
        f"{control.name + ', passed':28}  {_rate(control.chunks):>24}  {_rate(control.files):>24}"
        for control in profile.controls
    ]
    return said


def _of_rounding(profile: ProofProfile) -> str:
    return f", weights rounded to {profile.quantization}" if profile.quantization is not None else ""


def _of_file(limits: ProofThresholds) -> list[str]:
    if limits.file_mean is None:
        return []
    mean = limits.file_mean
    return [
        f"mean over a file of many chunks: {mean.bound:g}, higher over few; standard deviation of one chunk {mean.deviation:g}"
    ]


def _of_tokens(limits: ProofThresholds) -> list[str]:
    if limits.drawn_gaps is None:
        return []
    gaps = limits.drawn_gaps
    return [
        f"tokens behind those that seeds draw: {gaps.share:.3%} of many, by {gaps.mean:.2g} nats a token (deviation {gaps.deviation:.2g}), "
        f"one by {gaps.largest:g}"
    ]


def _rate(rate: ErrorRate) -> str:
    return f"{rate.share:.2%} ({rate.low:.2%}-{rate.high:.2%})"
