"""Deltas of real RL updates: a real instruct model, trained by the trainer's own functions on its own answers, at several learning rates.

In: SmolLM2-135M-Instruct (`tools/fetch_smollm2.py`). Out, for each rate and update: the share of bfloat16 values that change, and full bytes / delta
bytes of each coding. Each update is made from fresh answers, drawn from the version that workers would have, to sums with a reward of 1 or 0. Weights
are float32; what travels is bfloat16. There is no warm-up: the first updates of AdamW move every weight by the rate, later ones by less.

Two starts. `at_rest`: from the checkpoint, as every run does: its values are bfloat16, so each must move by half a step before its rounding changes.
`spread`: the same updates, where each weight starts anywhere between the neighbours that round to it, as after a long run. This is the harder one,
and its figure is the one to plan with. Called by `__main__`.
"""

import random
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.contracts.recipe import Recipe
from shoal.storage import delta, sparse

ROOT = Path(__file__).resolve().parents[2]
RATES = (3e-7, 1e-6, 3e-6, 1e-5)
UPDATES = 4
PROMPTS, ANSWERS, ANSWER_TOKENS = 2, 4, 4
DRAWS = 8
"""Times that prompts are drawn, until so many have answers of both kinds."""
SHARD_BYTES = 16 << 20


@dataclass
class Coded:
    """What the codings did with one version."""

    full: int = 0
    planes: int = 0
    sparse: int = 0
    chosen: int = 0
    changed: int = 0
    shards: int = 0
    planes_smaller: int = 0
    """Shards for which planes are smaller than sparse."""

    def add(self, new: bytes, base: bytes) -> None:
        self.shards += 1
        self.full += len(new)
        self.changed += int(np.count_nonzero(np.frombuffer(new, np.uint16) != np.frombuffer(base, np.uint16)))
        planes = len(delta.planes(new, base, 2))
        few = sparse.encode(np.frombuffer(new, np.uint8), np.frombuffer(base, np.uint8), 2)
        found = delta.encode(new, base, 2)
        if found is not None and bytes(delta.decode(*found, base, 2)) != new:
            raise RuntimeError("a delta did not come back as it went in")
        self.planes += min(planes, len(new))
        self.sparse += len(new) if few is None else min(len(few), len(new))
        self.chosen += len(new) if found is None else len(found[1])
        self.planes_smaller += few is None or planes < len(few)

    def figures(self) -> dict[str, float]:
        return {
            "changed_values": round(self.changed / max(1, self.full // 2), 6),
            "ratio": round(self.full / max(1, self.chosen), 2),
            "ratio_sparse": round(self.full / max(1, self.sparse), 2),
            "ratio_planes": round(self.full / max(1, self.planes), 2),
            "shards_with_smaller_planes": self.planes_smaller,
        }


class Starts:
    """The published versions of both starts, as one training makes them."""

    def __init__(self, weights: list[Tensor]) -> None:
        """`weights`: those of the checkpoint, bfloat16 values in float32."""
        chance = torch.Generator().manual_seed(0)
        self._apart = [_apart(tensor, chance) for tensor in weights]
        self._start = self._rounded(weights)
        self._last = self._start

    def add(self, weights: list[Tensor]) -> dict[str, dict[str, float]]:
        """Figures of the next version against the one before; and of both starts."""
        now = self._rounded(weights)
        found = {name: coded(now[name], self._last[name]).figures() for name in now}
        self._last = now
        return found

    def since_start(self) -> dict[str, dict[str, float]]:
        """Figures of the last version against the first."""
        return {name: coded(self._last[name], self._start[name]).figures() for name in self._last}

    def _rounded(self, weights: list[Tensor]) -> dict[str, bytes]:
        moved = (tensor + apart for tensor, apart in zip(weights, self._apart, strict=True))
        return {"at_rest": _bytes(weights), "spread": _bytes(moved)}


def coded(new: bytes, base: bytes) -> Coded:
    """One version against another, shard by shard, as the publisher does."""
    found = Coded()
    for at in range(0, len(new), SHARD_BYTES):
        found.add(new[at : at + SHARD_BYTES], base[at : at + SHARD_BYTES])
    return found


def _apart(tensor: Tensor, chance: torch.Generator) -> Tensor:
    """For each weight a number of at most half the step to its neighbour in bfloat16, which has eight significant bits."""
    step = torch.ldexp(torch.ones_like(tensor), torch.frexp(tensor)[1] - 8) * (tensor != 0)
    return ((torch.rand(tensor.shape, generator=chance) - 0.5) * step).to(torch.bfloat16)


def _bytes(weights: Iterable[Tensor]) -> bytes:
    return b"".join(each.to(torch.bfloat16).view(torch.int16).numpy().tobytes() for each in weights)


class Trained:
    """The model under the trainer's own functions, which answers with the version that workers would have."""

    def __init__(self, folder: Path, rate: float) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from shoal.contracts.trainer import TrainerSettings
        from shoal.training.model import load_policy
        from shoal.training.optimizer import Optimizer

        self.recipe = Recipe(
            prompts_per_step=PROMPTS, group_size=ANSWERS, optimizer_steps=1, learning_rate=rate, warmup_steps=0, kl_coefficient=0.0,
            max_sequence_length=128,
        )  # fmt: skip
        self._policy = load_policy(folder, TrainerSettings(data_type="BFloat16"))
        self._optimizer = Optimizer(self._policy.parameters(), self.recipe)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._sampler = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self._chance = random.Random(0)
        torch.manual_seed(0)

    def weights(self) -> list[Tensor]:
        """All of them, float32, names ascending."""
        return [tensor for _, tensor in self._policy.full_weights()]

    def update(self, step: int) -> dict[str, float]:
        """One update from fresh answers; what it was made of."""
        from shoal.training.batches import plan_step
        from shoal.training.update import train

        self._sampler.load_state_dict({name: each.to(torch.bfloat16) for name, each in self._policy.full_weights()})
        groups = [group for group in (self._group(step) for _ in range(DRAWS * PROMPTS)) if group is not None][:PROMPTS]
        if not groups:
            raise RuntimeError("no prompt has answers of both kinds")
        plan = plan_step(groups, self.recipe, seed=0, step=step)
        done = train(self._policy, self._optimizer, plan, [], None, self.recipe, lambda: None)
        if done.skipped:
            raise RuntimeError("an update was left out, because its gradient is not finite")
        rewards = [sample.reward for group in groups for sample in group.samples]
        return {
            "groups": len(groups),
            "reward_mean": round(sum(rewards) / len(rewards), 3),
            "gradient_norm": done.norms[0],
        }

    def _group(self, step: int) -> Any:
        """Answers to one prompt; None where all are right or all are wrong, as the run's filter has it."""
        from shoal.training.rollouts import RolloutGroup, Sample

        left, right = self._chance.randint(2, 9), self._chance.randint(11, 89)
        prompt = self._tokenizer(f"5+23=28\n3+41=44\n{left}+{right}=", return_tensors="pt").input_ids
        with torch.no_grad():
            drawn = self._sampler.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                num_return_sequences=ANSWERS, min_new_tokens=ANSWER_TOKENS, max_new_tokens=ANSWER_TOKENS,
            )  # fmt: skip
        samples = []
        for tokens in drawn.numpy().astype(np.int64):
            said = self._tokenizer.decode(tokens[prompt.shape[1] :]).split("\n")[0].strip()
            reward = float(said == str(left + right))
            samples.append(
                Sample(
                    name="drawn", tokens=tokens, prompt_length=prompt.shape[1], mask=np.ones(ANSWER_TOKENS, np.bool_),
                    logprobs=np.zeros(ANSWER_TOKENS, np.float32), temperature=1.0, policy_version=step,
                    task_reward=reward, length_penalty=0.0, reward=reward,
                )
            )  # fmt: skip
        return RolloutGroup(samples) if len({sample.reward for sample in samples}) > 1 else None


def measure(rates: tuple[float, ...] = RATES, updates: int = UPDATES) -> dict[str, Any]:
    """The figures of `size.json`. Takes half a minute an update and 4 GB of memory on one busy core."""
    sys.path.append(str(ROOT / "tools"))
    from fetch_smollm2 import fetched

    folder, curve = fetched(), {}
    for rate in rates:
        trained = Trained(folder, rate)
        starts = Starts(trained.weights())
        each = []
        for step in range(updates):
            started = time.monotonic()
            made = trained.update(step)
            each.append({"update": step + 1, **made, **starts.add(trained.weights())})
            print(f"  rate {rate:g}: {each[-1]} in {time.monotonic() - started:.0f} s", flush=True)
        curve[f"{rate:g}"] = {"each_update": each, f"all_{updates}_updates": starts.since_start()}
    return {
        "delta_ratio_bf16_real_updates": _worst(curve),
        "delta_updates": curve,
        "delta_updates_conditions": CONDITIONS,
    }


def _worst(curve: dict[str, Any]) -> float:
    """Of single updates at the lowest rate from the harder start."""
    lowest = curve[min(curve, key=float)]["each_update"]
    return float(min(each["spread"]["ratio"] for each in lowest))


CONDITIONS = {
    "model": "SmolLM2-135M-Instruct with an untied head, 163M weights; from a GGUF of four bits a weight",
    "task": "sums of a number of one and one of two digits after two examples; reward 1 for the sum, else 0",
    "update": f"GRPO, {PROMPTS} prompts with answers of both kinds x {ANSWERS} answers of {ANSWER_TOKENS} tokens, drawn from the last version",
    "optimizer": "AdamW, betas 0.9 and 0.99, no warm-up of the rate, gradient norm clipped to 0.1; float32 weights, bfloat16 products",
    "version": "one update each, bfloat16, shards of 16 MiB",
    "at_rest": "weights start as bfloat16 values, as any run does",
    "spread": "the same updates of weights that start anywhere within half a step of them, as late in a run; the headline is its smallest at 3e-7",
}
