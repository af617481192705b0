"""Does a tiny model learn to call the calculator, and what is it worth without one? `tool_reward_rise`, by seed.

`python -m benchmarks.agents.tool_rise [--seeds N]` trains the model of `examples/tool/tiny.yaml` with its recipe, once with the calculator and once
without: then a call ends the completion unanswered, so that the model has only its head. Both arms of a seed begin with the same weights and ask the
same sums. Without the calculator no sum is ever right, so no group has signal and that arm cannot rise by construction: it shows that only calls earn
a reward. A seed whose warm start fails is named in `warm_start_failed`, and has no rise.

The environment, its tools and scores, the warm start and the trainer's functions are those of a run; rollouts of step `s` are sampled in
this process with the weights of version `s - k`, as in `benchmarks.reproduce`. Writes `benchmarks/results/agents.json` and
`docs/images/tool_reward.svg`. A seed takes some minutes of one core; a crash loses the seed in hand only.
"""

import argparse
import hashlib
import json
import random
import shutil
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.prime.pipeline import write_json
from benchmarks.reproduce.figures import COLOURS, STYLE
from benchmarks.reproduce.ours import Learner
from benchmarks.reproduce.page import measured_on
from shoal.cli.local_run import config_of, read_manifest
from shoal.contracts.run import RunConfig
from shoal.contracts.tasks import Task
from shoal.environments.base import Score
from shoal.environments.generated_model import WarmStartFailed, make_model
from shoal.environments.prompts import prompt_tokens
from shoal.environments.sampling import sample_episodes
from shoal.environments.tokens import completion_text
from shoal.environments.tool import CALL, Tool
from shoal.training.rollouts import RolloutGroup, Sample

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tool" / "tiny.yaml"
RESULT = ROOT / "benchmarks" / "results" / "agents.json"
PICTURE = ROOT / "docs" / "images" / "tool_reward.svg"
CACHE = ROOT / ".cache" / "tool-rise"
HELD_OUT = 192
"""Sums that no arm trains on, one answer each: the standard error of a rate is at most 3.6 %."""
MEASURE_EVERY_STEPS = 4
SPARE_GROUPS = 1.5
"""Groups sampled at once, in multiples of those that a step needs."""
MOST_ROUNDS = 2
"""Of sampling for a step; it then trains on the groups with signal that were found."""


class Unaided(Tool):
    """The same sums, prompts and scores, and a calculator that answers no call."""

    most_calls = 0


ARMS: dict[str, Tool] = {"with_tool": Tool(), "without_tool": Unaided()}


@dataclass(frozen=True)
class Policy:
    """Samples of one arm, by a model whose weights change."""

    model: Any
    tokenizer: Any
    environment: Tool
    limit: int

    def draw(self, tasks: Sequence[Task], version: int, seed: int) -> list[Sample]:
        """One scored completion for each task."""
        prompts = [prompt_tokens(self.tokenizer, self.environment, task, None, None) for task in tasks]
        asked = list(zip(tasks, prompts, strict=True))
        rows = sample_episodes(self.model, self.tokenizer, self.environment, asked, self.limit, seed)
        return [
            Sample(
                name="simulated",
                tokens=np.array([*prompt, *row.tokens], dtype=np.int64),
                prompt_length=len(prompt),
                mask=np.array(row.mask, dtype=np.bool_),
                logprobs=np.zeros(len(row.tokens), dtype=np.float32),
                temperature=1.0,
                policy_version=version,
                task_reward=self._reward(task, row.tokens),
                length_penalty=0.0,
                reward=self._reward(task, row.tokens),
            )
            for (task, prompt), row in zip(asked, rows, strict=True)
        ]

    def _reward(self, task: Task, tokens: Sequence[int]) -> float:
        ends = frozenset([self.model.config.eos_token_id])
        scored = self.environment.score(task, completion_text(self.tokenizer, tokens, ends))
        assert isinstance(scored, Score)
        return scored.task_reward

    def calls(self, sample: Sample) -> bool:
        """Whether the model tries to call the calculator."""
        return CALL in self.tokenizer.decode(sample.tokens[sample.prompt_length :].tolist())


def train(config: RunConfig, base: Path, environment: Tool, seed: int) -> list[dict[str, float]]:
    """Train one arm for the steps of the run. Returns held-out reward and share of calls by step, every few steps and at the end."""
    torch.manual_seed(seed)
    learner = Learner(base, config.recipe, seed=seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype="float32").eval()
    policy = Policy(model, AutoTokenizer.from_pretrained(base), environment, config.sampling.max_completion_tokens)
    made = Tool().tasks((config.tasks.count or 0) + HELD_OUT, seed + 1000)
    held_out, taught = made[:HELD_OUT], made[HELD_OUT:]
    versions = deque([(0, learner.weights())], maxlen=config.async_level + 1)
    chance, records = random.Random(f"prompts {seed}"), list[dict[str, float]]()
    for step in range(config.steps + 1):
        if step % MEASURE_EVERY_STEPS == 0 or step == config.steps:
            model.load_state_dict(learner.weights())
            rows = policy.draw(held_out, step, seed)
            records.append(
                {
                    "step": step,
                    "held_out_reward": float(np.mean([row.task_reward for row in rows])),
                    "calls": float(np.mean([policy.calls(row) for row in rows])),
                }
            )
            print(f"seed {seed}, {environment.most_calls} calls: {json.dumps(records[-1])}", flush=True)
        if step == config.steps:
            break
        version, weights = versions[0]
        model.load_state_dict(weights)
        if kept := groups(config, policy, taught, chance, version, seed * 10_000 + step):
            learner.learn_rows(kept, step)
        versions.append((step + 1, learner.weights()))
    return records


def groups(
    config: RunConfig, policy: Policy, tasks: Sequence[Task], chance: random.Random, version: int, seed: int
) -> list[RolloutGroup]:
    """What one step trains on: groups whose rewards differ, as the online filter keeps them. Without any there is nothing to train on."""
    size, needed = config.recipe.group_size, config.recipe.prompts_per_step
    used: list[RolloutGroup] = []
    for attempt in range(MOST_ROUNDS):
        asked = chance.choices(tasks, k=round(SPARE_GROUPS * needed))
        rows = policy.draw([task for task in asked for _ in range(size)], version, seed + 1000 * attempt)
        sampled = [RolloutGroup(rows[first : first + size]) for first in range(0, len(rows), size)]
        used += [each for each in sampled if len({row.task_reward for row in each.samples}) > 1]
        if len(used) >= needed:
            break
    return used[:needed]


def seed_of(config: RunConfig, seed: int) -> dict[str, Any]:
    """Both arms of one seed, or why its warm start failed. The base model is made as prepare makes it."""
    assert config.model.generated is not None
    base, began = CACHE / f"base-{seed}", time.process_time()
    shutil.rmtree(base, ignore_errors=True)
    generated, length = config.model.generated, config.recipe.max_sequence_length
    try:
        right = make_model(base, Tool(), [None], generated, length, seed, lambda *_: None)
    except WarmStartFailed as error:
        return {"seed": seed, "warm_start_failed": str(error)}
    found = {name: train(config, base, environment, seed) for name, environment in ARMS.items()}
    shutil.rmtree(base)
    return {
        "seed": seed,
        "warm_start_right": right,
        "rise": {
            name: records[-1]["held_out_reward"] - records[0]["held_out_reward"] for name, records in found.items()
        },
        "cpu_seconds": time.process_time() - began,
        "curves": found,
    }


def trained_of(seeds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The seeds whose warm start succeeded. Raises SystemExit without any."""
    trained = [each for each in seeds if "rise" in each]
    if not trained:
        raise SystemExit("The warm start of every seed failed, so there is no rise to tell.")
    return trained


def figures_of(seeds: Sequence[dict[str, Any]], config: RunConfig) -> dict[str, Any]:
    """What stands in `agents.json`: the smallest rise with the calculator of seeds whose warm start succeeded, and everything by seed."""
    failed = [each["seed"] for each in seeds if "warm_start_failed" in each]
    trained = trained_of(seeds)
    return {
        "tool_reward_warm_starts_failed": len(failed),
        "tool_reward_rise": round(min(each["rise"]["with_tool"] for each in trained), 3),
        "tool_reward": {
            "largest_rise_without_tool": round(max(each["rise"]["without_tool"] for each in trained), 3),
            "warm_start_failed": failed,
            "steps": config.steps,
            "held_out_tasks": HELD_OUT,
            "seeds": list(seeds),
            "machine": measured_on(),
        },
    }


def draw(seeds: Sequence[dict[str, Any]], path: Path) -> None:
    """Held-out reward and share of calls by step: a thin line for each trained seed, a thick one for their mean."""
    seeds = trained_of(seeds)
    titles = {"with_tool": "with the calculator", "without_tool": "without"}
    panels = {"held_out_reward": "held-out sums that are right", "calls": "answers that call the calculator"}
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": "shoal"}):
        figure = Figure(figsize=(9.2, 3.3), layout="constrained")
        for axes, (name, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            axes.set(xlabel="step", ylabel=label, ylim=(-0.02, 1.02))
            for (arm, title), colour in zip(titles.items(), COLOURS, strict=False):
                curves = np.array([[record[name] for record in each["curves"][arm]] for each in seeds])
                steps = [record["step"] for record in seeds[0]["curves"][arm]]
                axes.plot(steps, curves.T, color=colour, linewidth=0.7, alpha=0.45)
                axes.plot(steps, curves.mean(axis=0), color=colour, linewidth=1.8, label=title)
        figure.axes[0].legend(loc="center right", fontsize=8)
        # Without metadata the same curves give the same bytes.
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds, from 1 on (default 3)")
    count = parser.parse_args().seeds
    torch.set_num_threads(1)
    CACHE.mkdir(parents=True, exist_ok=True)
    config = config_of(read_manifest(EXAMPLE))
    seeds = []
    # Figures of another manifest or another program are not taken up.
    made_by = hashlib.sha256(EXAMPLE.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:12]
    for seed in range(1, count + 1):
        kept = CACHE / f"{made_by}-{seed}.json"
        if not kept.exists():
            write_json(kept, seed_of(config, seed))
        seeds.append(json.loads(kept.read_text()))
    found = figures_of(seeds, config)
    print(
        json.dumps({"tool_reward_rise": found["tool_reward_rise"]} | {"by_seed": [each.get("rise") for each in seeds]})
    )
    write_json(RESULT, json.loads(RESULT.read_text()) | found)
    draw(seeds, PICTURE)


if __name__ == "__main__":
    main()
