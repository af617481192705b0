"""What is compared: every arm is the run's own recipe with one thing changed, and every experiment is a few arms in one figure.

In: nothing. Out: `ARMS` by name and `EXPERIMENTS`. Arms that coincide are one arm, run once: `default` stands in most figures. Pure data;
called by everything else here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.contracts.completions import LengthReward
from shoal.contracts.recipe import Recipe

TARGETS = (20, 24, 28)
ALPHA = 0.0003
MAX_LENGTH = 64
RECIPE: dict[str, Any] = {
    "prompts_per_step": 16,
    "group_size": 8,
    "optimizer_steps": 3,
    "learning_rate": 1.5e-4,
    "warmup_steps": 15,
    "max_sequence_length": MAX_LENGTH,
    "pack_length": 512,
}
"""That of examples/arithmetic with 16 prompts a step in place of 24, so that all arms fit an hour of one core."""
STRESS: dict[str, Any] = {"learning_rate": 3e-4, "optimizer_steps": 8, "max_grad_norm": 1.0, "kl_coefficient": 0.0}
"""Twice the learning rate, eight updates a batch as in the paper, hardly any gradient clip: where one-sided clipping can go wrong. No KL
penalty, since k3 makes spikes of its own when the policy is far from the base model."""
LONG: dict[str, Any] = {"prompts_per_step": 24}
"""The shipped example's batch, for its question: which learning rate lasts."""
LENGTH_ALPHA = 0.1
"""The paper's 0.0003 makes a miss by its whole range of targets (8,000 tokens) cost 2.4; this makes one of 16 tokens cost 1.6."""
PADDED_TARGETS = (21, 29, 37)
"""Lengths of an answer that writes its first column once, twice or three times."""
LENGTHS: dict[str, Any] = {"alpha": LENGTH_ALPHA, "targets": PADDED_TARGETS, "max_completion": 48}

PAPER_RATE, PAPER_WIDTH = 3e-7, 5120
"""Learning rate of the paper (section 4.1), and the hidden size of QwQ-32B."""
WIDTH, WIDE = 128, 256
MATCHED: dict[str, Any] = {
    "learning_rate": PAPER_RATE * PAPER_WIDTH / WIDTH,
    "optimizer_steps": 8,
    "warmup_steps": 25,
}
"""The paper's movement a version: AdamW moves what a layer does in proportion to rate times width (Yang et al., 2022), so the rate at width 128 is
1.2e-5, with the paper's updates a step. The pilot (`reproduction_pilot.json`) has measured it: 2e-4 nats a token from one version to the next, and
0.02 % of ratios clipped; the example's rate moves 2e-2 nats, a hundred times as far. In 60 steps the reward rises from 0.36 to 0.66."""
MATCHED_STRESS: dict[str, Any] = {
    **MATCHED,
    "learning_rate": 20 * MATCHED["learning_rate"],
    "max_grad_norm": 1.0,
    "kl_coefficient": 0.0,
}
MATCHED_STEPS = 160
"""Some three minutes of a core, and room above the end: the pilot's curve is still rising at 60."""
PILOT_RATES = (0.5, 1.0, 3.0, 12.5)
"""Multiples of the matched rate; the last is that of examples/arithmetic."""
REAL_PILOT_RATES = (3e-5, 1e-4)
"""Learning rates of adapters on the real model. At 1e-4 a version moves 0.04 nats a token and clips 9 % of the ratios."""

Model = Literal["taught", "SmolLM2-135M-Instruct"]
"""`taught`: a model of our own making that has learnt a little. The other is a real one, which is trained with low-rank adapters."""
Data = Literal["additions", "mixed", "filtered", "padded", "told", "untaught"]
"""`additions`: the environment's tasks, with a real model those of `largest`. `mixed`: half of them replaced by tasks that the base model never gets
right. `filtered`: `mixed` after the offline filter. `padded`: additions with a base model that pads its scratchpad at random. `told`: at random too,
but in a quarter of its lessons as the prompt asks. `untaught`: additions with random weights, for a quick try."""


@dataclass(frozen=True)
class Arm:
    """One setting of a run. `online_filter` False takes groups as they come; `compiled` compiles each layer of the policy.

    With `boundaries` each row goes on under the version after its first (`rollouts.versions: Several`) from one of these tokens, drawn by chance.
    """

    title: str
    recipe: dict[str, Any] = field(default_factory=dict)
    async_level: int = 2
    data: Data = "additions"
    online_filter: bool = True
    compiled: bool = False
    alpha: float = ALPHA
    targets: tuple[int, ...] = TARGETS
    max_completion: int = 32
    steps: int = 40
    width: int = WIDTH
    boundaries: tuple[int, ...] = ()
    model: Model = "taught"

    def full_recipe(self) -> Recipe:
        """The recipe that the trainer's functions are given."""
        return Recipe(**(RECIPE | self.recipe))

    @property
    def base(self) -> str:
        """Name of the taught base models of arms that share them, one for each seed."""
        kinds = [
            self.data if self.data in ("padded", "told", "untaught") else "",
            f"wide{self.width}" if self.width != WIDTH else "",
        ]
        return "-".join(["base", *filter(None, kinds)])

    @property
    def lengths(self) -> LengthReward:
        return LengthReward(targets=list(self.targets), alpha=self.alpha)


@dataclass(frozen=True)
class Experiment:
    """One figure: which arms, which curves (names of a record's fields), and what the paper says."""

    title: str
    paper: str
    arms: tuple[str, ...]
    curves: tuple[str, ...]


ARMS: dict[str, Arm] = {
    "default": Arm("default: async 2, both filters, two-sided, clip 0.1, KL 0.001"),
    "async0": Arm("synchronous", async_level=0),
    "async1": Arm("async level 1", async_level=1),
    "async4": Arm("async level 4", async_level=4),
    "one_sided": Arm("one-sided, stressed", {**STRESS, "algorithm": {"one_sided_grpo": {}}}),
    "two_sided": Arm("two-sided, stressed", STRESS),
    "stress_clip": Arm("two-sided, stressed, gradient clip 0.1", {**STRESS, "max_grad_norm": 0.1}),
    "no_online": Arm("online filter off", online_filter=False),
    "mixed": Arm("offline filter off", data="mixed", online_filter=False),
    "filtered": Arm("offline filter on", data="filtered", online_filter=False),
    "lengths": Arm(
        "length penalty 0.1 a token, 80 steps",
        data="padded", **LENGTHS, steps=80, recipe={"max_sequence_length": 80},
    ),
    "grad_clip_1": Arm("gradient clip 1.0", {"max_grad_norm": 1.0}),
    "kl_0": Arm("KL weight 0", {"kl_coefficient": 0.0}),
    "kl_01": Arm("KL weight 0.01", {"kl_coefficient": 0.01}),
    "kl_1": Arm("KL weight 0.1", {"kl_coefficient": 0.1}),
    "compiled": Arm("torch.compile on", compiled=True),
    "rate_150": Arm("learning rate 1.5e-4", LONG, steps=90),
    "rate_100": Arm("learning rate 1.0e-4", {**LONG, "learning_rate": 1e-4}, steps=90),
}  # fmt: skip

EXPERIMENTS: dict[str, Experiment] = {
    "async_level": Experiment(
        "Async level 0, 1, 2, 4",
        "Figure 7: up to level 4 the reward follows that of the synchronous run.",
        ("async0", "async1", "default", "async4"),
        ("held_out_reward",),
    ),
    "offline_filter": Experiment(
        "Offline filter",
        "Figure 8: without it the reward barely improves.",
        ("mixed", "filtered"),
        ("held_out_reward", "signal_share"),
    ),
    "online_filter": Experiment(
        "Online filter",
        "Section 3.3.2: groups with equal rewards teach nothing; sampling goes on until the batch is full of signal.",
        ("no_online", "default"),
        ("held_out_reward", "groups_sampled"),
    ),
    "two_sided_clip": Experiment(
        "One-sided and two-sided clip, gradient clip under stress",
        "Section 3.4: one-sided clipping made spikes of loss and gradient norm; delta stopped them.",
        ("one_sided", "two_sided", "stress_clip"),
        ("held_out_reward", "gradient_norm_max", "largest_ratio"),
    ),
    "gradient_clip": Experiment(
        "Gradient clip 0.1 and 1.0",
        "Section 3.5: clipping at 0.05 to 0.1 costs little and puts off instability.",
        ("grad_clip_1", "default"),
        ("held_out_reward", "gradient_norm"),
    ),
    "kl_weight": Experiment(
        "KL weight",
        "Section 3.5: a larger weight is slower, and puts off a collapse.",
        ("kl_0", "default", "kl_01", "kl_1"),
        ("held_out_reward", "kl"),
    ),
    "length_control": Experiment(
        "Length control with a discrete set of targets",
        "Section 3.1.2 and 4.2: small models learn to follow the target; the 32B model hardly did in its time.",
        ("lengths",),
        ("held_out_reward", "length_error", "lengths"),
    ),
    "compile": Experiment(
        "torch.compile",
        "Figure 11: on GPUs it led to a late collapse, probably one faulty kernel.",
        ("compiled", "default"),
        ("held_out_reward", "gradient_norm"),
    ),
    "learning_rate": Experiment(
        "Learning rate over 90 steps of the shipped example",
        "Not in the paper; the example's choice.",
        ("rate_150", "rate_100"),
        ("held_out_reward", "entropy"),
    ),
}


MATCHED_LENGTHS: dict[str, Any] = {**MATCHED, "max_sequence_length": 80}


def _matched(title: str, recipe: Mapping[str, Any] = MATCHED, **more: Any) -> Arm:
    return Arm(title, dict(recipe), **{"steps": MATCHED_STEPS} | more)


MATCHED_ARMS: dict[str, Arm] = {
    "matched_async0": _matched("synchronous", async_level=0),
    "matched_async1": _matched("async level 1", async_level=1),
    "matched_async2": _matched("async level 2, all as in the paper"),
    "matched_async4": _matched("async level 4", async_level=4),
    "matched_async8": _matched("async level 8", async_level=8),
    "matched_mixed": _matched("offline filter off", data="mixed", online_filter=False),
    "matched_filtered": _matched("offline filter on", data="filtered", online_filter=False),
    "matched_no_online": _matched("online filter off", online_filter=False),
    "matched_grad_clip_1": _matched("gradient clip 1.0", {**MATCHED, "max_grad_norm": 1.0}),
    "matched_kl_0": _matched("KL weight 0", {**MATCHED, "kl_coefficient": 0.0}),
    "matched_kl_1": _matched("KL weight 0.1", {**MATCHED, "kl_coefficient": 0.1}),
    "matched_stress_one_sided": _matched("one-sided, stressed", {**MATCHED_STRESS, "algorithm": {"one_sided_grpo": {}}}),
    "matched_stress_two_sided": _matched("two-sided, stressed", MATCHED_STRESS),
    "matched_stress_clip": _matched("two-sided, stressed, gradient clip 0.1", {**MATCHED_STRESS, "max_grad_norm": 0.1}),
    "matched_lengths": _matched("length penalty 0.1 a token", MATCHED_LENGTHS, data="padded", **LENGTHS),
    "matched_lengths_told": _matched(
        "length penalty 0.1 a token, a base model that has met the request", MATCHED_LENGTHS, data="told", **LENGTHS
    ),
    "matched_lengths_told_long": _matched(
        "the same over twice the steps", MATCHED_LENGTHS, data="told", **LENGTHS, steps=2 * MATCHED_STEPS
    ),
    "matched_wide": _matched("twice as wide", {**MATCHED, "learning_rate": PAPER_RATE * PAPER_WIDTH / WIDE}, width=WIDE),
}  # fmt: skip
"""Of `claims.json`."""
REAL_MODEL: Model = "SmolLM2-135M-Instruct"
REAL: dict[str, Any] = {
    "prompts_per_step": 8,
    "optimizer_steps": 4,
    "warmup_steps": 4,
    "learning_rate": 3e-5,
    "kl_coefficient": 0.0,
    "max_sequence_length": 80,
    "pack_length": 512,
}
"""A step of 64 answers to prompts of 50 tokens takes 80 to 100 s of a core."""
REAL_STRESS: dict[str, Any] = {**REAL, "learning_rate": 10 * REAL["learning_rate"], "max_grad_norm": 1.0}
REAL_STEPS = 20


def _real(title: str, recipe: Mapping[str, Any] = REAL, **more: Any) -> Arm:
    common = {"model": REAL_MODEL, "targets": (REAL_LENGTH,), "max_completion": REAL_LONGEST, "steps": REAL_STEPS}
    return Arm(title, dict(recipe), **common | more)


REAL_LENGTH, REAL_LONGEST = 3, 5
"""Tokens of an answer (two digits and the end), and at most."""
REAL_ARMS: dict[str, Arm] = {
    "real_async0": _real("synchronous", async_level=0),
    "real_async2": _real("async level 2"),
    "real_mixed": _real("offline filter off", data="mixed", online_filter=False),
    "real_filtered": _real("offline filter on", data="filtered", online_filter=False),
    "real_one_sided": _real("one-sided, stressed", {**REAL_STRESS, "algorithm": {"one_sided_grpo": {}}}),
    "real_two_sided": _real("two-sided, stressed", REAL_STRESS),
}
REAL_EXPERIMENTS: dict[str, Experiment] = {
    "real_async": Experiment(
        f"Async level on {REAL_MODEL}",
        "Figure 7: up to level 4 the reward follows that of the synchronous run.",
        ("real_async0", "real_async2"),
        ("held_out_reward", "gradient_norm"),
    ),
    "real_offline_filter": Experiment(
        f"Offline filter on {REAL_MODEL}",
        "Figure 8: without it the reward barely improves.",
        ("real_mixed", "real_filtered"),
        ("held_out_reward", "signal_share"),
    ),
    "real_two_sided_clip": Experiment(
        f"One-sided and two-sided clip on {REAL_MODEL}, under stress",
        "Section 3.4: one-sided clipping made spikes of loss and gradient norm; delta stopped them.",
        ("real_one_sided", "real_two_sided"),
        ("held_out_reward", "gradient_norm_max", "largest_ratio"),
    ),
}
"""One pair for each of three claims, on weights that are not ours: enough to confirm or to doubt, not to decide."""
SHOWN_ARMS, SHOWN_EXPERIMENTS = ARMS | REAL_ARMS, EXPERIMENTS | REAL_EXPERIMENTS
"""Those of the page's tables and figures."""
PILOT_ARMS: dict[str, Arm] = {
    f"pilot_{times:g}": _matched(
        f"synchronous, {times:g} times the matched rate",
        {**MATCHED, "learning_rate": times * MATCHED["learning_rate"]},
        async_level=0, steps=60,
    )
    for times in PILOT_RATES
} | {
    f"pilot_real_{rate:g}": _real(f"{REAL_MODEL} at {rate:g}", {**REAL, "learning_rate": rate}, async_level=0, steps=5)
    for rate in REAL_PILOT_RATES
}  # fmt: skip
BOUNDARIES = (8, 16)
"""Tokens of an answer of some 22. In a run segments begin at multiples of 32, of answers of thousands."""
INFLIGHT_STEPS = 24
"""Where the reward still rises fast, so that a worse policy would show."""
INFLIGHT_ARMS: dict[str, Arm] = {
    "inflight_one": Arm("rows of one version, two steps old", steps=INFLIGHT_STEPS),
    "inflight_several": Arm(
        "rows two steps old that go on under weights one step old", boundaries=BOUNDARIES, steps=INFLIGHT_STEPS
    ),
}
"""Of `inflight_reward_gap` (`benchmarks.workers`): both within async level 2."""
SEEDS = (1, 2, 3)


def needed(experiments: dict[str, Experiment] | None = None) -> list[str]:
    """Arms of the experiments, each once, in the order in which they are first used."""
    chosen = EXPERIMENTS if experiments is None else experiments
    return list(dict.fromkeys(name for experiment in chosen.values() for name in experiment.arms))
