"""`shoal calibrate`: measure a checkpoint's honest proof errors and write its proof profile beside its weights.

In: a checkpoint's folder and how much to measure. Out: `proof_profile.json` and a table. For models that prepare leaves alone because of their size,
for a bound on false rejects that prepare has no time for, and for another type of serving. Called by `main`.
"""

from collections.abc import Callable
from pathlib import Path

from shoal import environments
from shoal.cli.errors import InputWrong
from shoal.contracts.proof_profile import PROFILE_FILE, ErrorRate, ProofProfile
from shoal.environments.prepare import CannotPrepare, checked_checkpoint
from shoal.environments.proof_calibration import PROMPTS, measure
from shoal.proofs import CannotCalibrate
from shoal.proofs.calibration import Effort


def calibrate(
    model: Path,
    environment: str,
    dtype: str,
    max_length: int,
    effort: Effort,
    output: Path | None,
    write: Callable[[str], None],
) -> None:
    """Calibrate the checkpoint in `model`; `write` is told a line at a time. Raises InputWrong."""
    try:
        folder = checked_checkpoint(model)
        loaded = environments.load(environment)
        tasks = loaded.tasks(PROMPTS, effort.seed)
        profile = measure(folder, loaded, tasks, [None], max_length, effort, dtype)
    except (CannotPrepare, CannotCalibrate, ValueError) as error:
        raise InputWrong(f"{model}: {str(error).removeprefix('spec.model.path: ')}") from None
    path = output or folder / PROFILE_FILE
    path.with_suffix(".part").write_bytes(profile.to_json())
    path.with_suffix(".part").replace(path)
    for line in lines(profile):
        write(line)
    write(f"written to {path}: it travels with the weights from here on")


def lines(profile: ProofProfile) -> list[str]:
    """The profile for people."""
    limits, honest, size = profile.thresholds, profile.honest, profile.size
    said = [
        f"{size.sequences} sequences, {size.tokens} tokens, {size.chunks} chunks in {profile.dtype}; files of {size.file_sequences} sequences",
        f"masked dimensions: {len(profile.masked_dimensions)} of {profile.hidden_size}",
        f"thresholds: {limits.max_exponent_mismatches} mismatches of 128, mantissa error mean {limits.max_mantissa_error_mean:g}, "
        f"median {limits.max_mantissa_error_median:g}",
        f"honest proofs, largest seen: {honest.max_mismatches}, {honest.max_mantissa_error_mean:.3g}, {honest.max_mantissa_error_median:g}",
        f"{'':28}  {'chunks':>24}  {'files':>24}",
        f"{'honest, rejected':28}  {_rate(honest.rejected_chunks):>24}  {_rate(honest.rejected_files):>24}",
    ]
    said += [
        f"{control.name + ', passed':28}  {_rate(control.chunks):>24}  {_rate(control.files):>24}"
        for control in profile.controls
    ]
    return said


def _rate(rate: ErrorRate) -> str:
    return f"{rate.share:.2%} ({rate.low:.2%}-{rate.high:.2%})"
