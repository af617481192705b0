"""Golden values by TRL 1.16.0: `make golden` writes tests/training/golden/trl.json (its README says what each case pins).

In: the model and batch of `golden_model`. Out: what TRL's own `GRPOTrainer._compute_loss` and its advantages give for them. Runs in the
oracle's environment: `$(tools/oracle.sh) -m benchmarks.trainer.make_golden`.
"""

import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.trainer.trl_side import make_trainer, padded_batch

TESTS = Path(__file__).resolve().parents[2] / "tests" / "training"
sys.path.insert(0, str(TESTS))  # the tests' helper modules are imported by their bare names
import golden_model
from golden_model import GROUP_SIZE, ROWS, TEMPERATURE

TARGET = TESTS / "golden" / "trl.json"
IMPORTANCE_CAP = 2.0
MAX_COMPLETION = 20
CASES: dict[str, dict[str, Any]] = {
    "one_sided": {"loss_type": "bnpo"},
    "one_sided_sequence_mean": {"loss_type": "grpo"},
    "two_sided": {"loss_type": "bnpo", "delta": 4.0},
    "two_sided_global_count": {"loss_type": "dapo", "delta": 4.0},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "kl": {"loss_type": "dapo", "beta": 0.04},
    "entropy": {"loss_type": "dapo", "entropy_coef": 0.01},
    "whole_recipe": {"loss_type": "dapo", "delta": 4.0, "beta": 0.001, "entropy_coef": 1e-4},
    "importance": {"loss_type": "dapo", "importance": "token_truncate"},
    "importance_mask": {"loss_type": "dapo", "importance": "token_mask"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_high": 0.28},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
}
"""Settings of GRPOConfig; epsilon is 0.2 in all. `importance` switches TRL's correction for vLLM on, in this mode, with the cap."""
GRADIENTS = ("lm_head.weight", "model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight")
SHOWN_ENTRIES = 24


def main() -> None:
    torch.set_num_threads(1)
    model = golden_model.golden_model()
    prompts, completions = golden_model.prompts(), golden_model.completions()
    logprobs, entropies = _scored(prompts, completions)
    given = {
        "prompts": prompts,
        "completions": completions,
        "advantages": golden_model.advantages(),
        "old": [golden_model.moved(row, 400 + n, 2.0) for n, row in enumerate(logprobs)],
        "reference": [golden_model.moved(row, 500 + n, 0.8) for n, row in enumerate(logprobs)],
        "behaviour": [golden_model.moved(row, 600 + n, 1.5) for n, row in enumerate(logprobs)],
    }
    found = {
        "made_by": {name: version(name).split("+")[0] for name in ("trl", "torch", "transformers")}
        | {"python": platform.python_version()},
        "temperature": TEMPERATURE,
        "epsilon": 0.2,
        "importance_cap": IMPORTANCE_CAP,
        "max_completion_length": MAX_COMPLETION,
        "given": given,
        "logprobs": logprobs,
        "entropies": entropies,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "cases": {name: {"settings": settings} | _case(settings, given) for name, settings in CASES.items()},
        "advantages": _advantages(),
    }
    TARGET.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    print(f"{len(CASES)} cases written to {TARGET}")


def _trainer(**settings: Any) -> Any:
    return make_trainer(
        golden_model.golden_model(),
        rows=ROWS,
        group_size=GROUP_SIZE,
        temperature=TEMPERATURE,
        max_completion_length=MAX_COMPLETION,
        **({"epsilon": 0.2, "use_bias_correction_kl": False} | settings),
    )


def _scored(prompts: list[list[int]], completions: list[list[int]]) -> tuple[list[list[float]], list[list[float]]]:
    """TRL's log-probabilities and entropies of every completion token."""
    trainer = _trainer()
    batch = padded_batch(prompts, completions, [0.0] * ROWS, [[0.0] * len(row) for row in completions])
    with torch.no_grad():
        logprobs, entropies, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].shape[1],
            compute_entropy=True,
        )
    lengths = [len(row) for row in completions]

    def cut(kind: torch.Tensor) -> list[list[float]]:
        return [row[:length].tolist() for row, length in zip(kind, lengths, strict=True)]

    return cut(logprobs), cut(entropies)


def _case(settings: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Loss, gradient to each log-probability, and gradients of the model, by TRL's own code."""
    plain = {name: value for name, value in settings.items() if name != "importance"}
    trainer = _trainer(**plain)
    importance = None
    if settings.get("importance"):
        trainer.use_vllm, trainer.vllm_importance_sampling_correction = True, True
        # `_generate_and_score_completions`: exp(old - sampled), cut at the cap, or 0 above it.
        ratios = [
            torch.exp(torch.tensor(old) - torch.tensor(behaviour))
            for old, behaviour in zip(given["old"], given["behaviour"], strict=True)
        ]
        masks = settings["importance"] == "token_mask"
        importance = [
            (row.masked_fill(row > IMPORTANCE_CAP, 0.0) if masks else row.clamp(max=IMPORTANCE_CAP)).tolist()
            for row in ratios
        ]
    kept: list[torch.Tensor] = []
    scored = trainer._get_per_token_logps_and_entropies

    def keeping(*args: Any, **kwargs: Any) -> Any:
        logprobs, entropies, auxiliary = scored(*args, **kwargs)
        logprobs.retain_grad()
        kept.append(logprobs)
        return logprobs, entropies, auxiliary

    trainer._get_per_token_logps_and_entropies = keeping
    reference = given["reference"] if settings.get("beta") else None
    batch = padded_batch(
        given["prompts"], given["completions"], given["advantages"], given["old"], reference, importance
    )
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}
    norm = torch.sqrt(sum(gradient.double().square().sum() for gradient in gradients.values()))
    pushes = [row[: len(c)].tolist() for row, c in zip(kept[0].grad, given["completions"], strict=True)]
    metrics = trainer._metrics["train"]
    return {
        "loss": float(loss.detach()),
        "gradient_norm": float(norm),
        "gradient_of_logprobs": pushes,
        "gradients": {
            name: {
                "sum_of_squares": float(gradients[name].double().square().sum()),
                "first": gradients[name].flatten()[:SHOWN_ENTRIES].tolist(),
            }
            for name in GRADIENTS
        },
        "clip_low": metrics["clip_ratio/low_mean"][-1] if "clip_ratio/low_mean" in metrics else None,
        "clip_high": metrics["clip_ratio/high_mean"][-1] if "clip_ratio/high_mean" in metrics else None,
        "entropy": metrics["entropy"][-1],
        "kl": metrics["kl"][-1] if settings.get("beta") else None,
    }


def _advantages() -> dict[str, Any]:
    """TRL's advantages for given rewards: its whole path runs, with a model that generates two tokens."""
    rewards = [1.0, 0.0, 0.0, 1.0, 0.7, -0.2, 0.1, 0.3]

    def given(completions: list[Any], **_: Any) -> list[float]:
        return rewards

    found: dict[str, Any] = {"rewards": rewards, "group_size": GROUP_SIZE}
    for name, rloo, settings in (
        ("group", False, {"scale_rewards": "group"}),
        ("none", False, {"scale_rewards": "none"}),
        ("rloo", True, {"normalize_advantages": False}),
    ):
        trainer = make_trainer(
            golden_model.golden_model(), rows=ROWS, group_size=GROUP_SIZE, rewards=given, rloo=rloo, max_completion_length=2, **settings
        )  # fmt: skip
        scored = trainer._generate_and_score_completions([{"prompt": "2 3 4"}] * ROWS)
        found[name] = scored["advantages"].tolist()
    return found


if __name__ == "__main__":
    main()
