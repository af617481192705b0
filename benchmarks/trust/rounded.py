"""`python -m benchmarks.trust.rounded MODEL`: what quantised rollouts (ADR 0116) change for one model; writes `benchmarks/results/rounded.json`.

In: a checkpoint's folder. Out: honest errors, gaps and controls of a calibration with the workers' own engine, with and without the term. And how far
the rounded weights' policy is from the trainer's, before any correction: the exact divergence at each token of samples of the rounded model, and the
ratios p_trainer / p_sampler of the sampled tokens. SmolLM2-135M in bfloat16 takes some minutes on one core.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from shoal import environments
from shoal.cli.calibrate import calibrate
from shoal.contracts.pools import Quantization
from shoal.contracts.proof_profile import PROFILE_FILE, ProofProfile
from shoal.environments.prompt_check import decided
from shoal.environments.prompts import load_tokenizer, prompt_tokens
from shoal.models.head import logits_of
from shoal.proofs.calibration import Effort
from shoal.proofs.forward import Decoded, decode
from shoal.validation.models import load_model

RESULT = Path(__file__).parents[1] / "results" / "rounded.json"
CAP = 2.0
"""Of the recipe's `mismatchCorrection.truncate`."""


def profile_of(model: Path, quantization: Quantization | None, effort: Effort, environment: str) -> dict[str, Any]:
    """The figures of one calibration by the workers' engine."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / PROFILE_FILE
        calibrate(model, environment, "auto", 1024, effort, output, print, engine=True, quantization=quantization)
        profile = ProofProfile.from_json(output.read_bytes())
    gaps, honest = profile.thresholds.drawn_gaps, profile.honest
    return {
        "dtype": profile.dtype,
        "honest_chunks": profile.size.chunks,
        "honest_chunks_rejected": honest.rejected_chunks.events,
        "max_mismatches": honest.max_mismatches,
        "max_mantissa_error_mean": honest.max_mantissa_error_mean,
        "drawn_gaps": gaps.model_dump() if gaps is not None else None,
        "controls_accepted_chunks": {each.name: each.chunks.share for each in profile.controls},
    }


@torch.inference_mode()
def mismatch(model: Path, effort: Effort, environment: str) -> dict[str, float]:
    """The sampler's policy against the trainer's, at temperature 1, over tokens that the sampler drew."""
    loaded, tokenizer = environments.load(environment), load_tokenizer(model)
    terms = decided(None, model, tokenizer)
    prompts = [
        prompt_tokens(tokenizer, loaded, task, None, terms) for task in loaded.tasks(effort.sequences, effort.seed)
    ]
    sampler, trainer = load_model(model, quantization="fp8"), load_model(model)
    divergence, ratios = [], []
    for group in decode(sampler, prompts, effort.max_tokens, effort.seed, 8):
        for each in group:
            ours, theirs = (_logprobs(one, each) for one in (trainer, sampler))
            divergence.append((theirs.exp() * (theirs - ours)).sum(-1))
            drawn = torch.tensor(each.completion)[:, None]
            ratios.append((ours - theirs).gather(1, drawn)[:, 0].exp())
    ratio = torch.cat(ratios)
    return {
        "tokens": float(ratio.numel()),
        "mean_kl_nats": float(torch.cat(divergence).mean()),
        "mean_distance_of_ratio_from_1": float((ratio - 1).abs().mean()),
        "share_of_ratios_above_cap": float((ratio > CAP).double().mean()),
        "largest_ratio": float(ratio.max()),
    }


def _logprobs(model: Any, sequence: Decoded) -> torch.Tensor:
    """float32 [completion tokens, vocabulary]."""
    tokens = torch.tensor([[*sequence.prompt, *sequence.completion]])
    count = len(sequence.completion)
    states = model.model(input_ids=tokens, use_cache=False).last_hidden_state[0, -count - 1 : -1]
    return logits_of(model, states).float().log_softmax(-1)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--environment", default="math")
    parser.add_argument("--sequences", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--only", choices=("mismatch", "published", "fp8"), help="one part; absent: all")
    asked = parser.parse_args()
    effort = Effort(asked.sequences, asked.max_tokens, 120.0, 8, 3e-7, 8)
    held = json.loads(RESULT.read_text()) if asked.only and RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(shutil.copytree(asked.model, Path(scratch) / "model"))
        (model / PROFILE_FILE).unlink(missing_ok=True)
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "mismatch": lambda: mismatch(model, effort, asked.environment),
            "published": lambda: profile_of(model, None, effort, asked.environment),
            "fp8": lambda: profile_of(model, "fp8", effort, asked.environment),
        }
        for name, measure in parts.items():
            if asked.only in (None, name):
                held[name] = measure()
    found = {"model": asked.model.name} | held
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
