"""A dishonest worker that has the right weights, knows every bound, and asks the public judge before it hands anything in.

In: the demo's models in two types, and a real one. Out: for each type of serving how much of an accepted file it can choose (`measure`). Its proofs
are perfect: one honest prefill makes them. Every row is checked, as on probation. Three aims:

- Cheap tokens. Other weights write, and where their token is farther behind than x nats under the right weights, the right one is put in its
  place: one pass with both models, so that nothing is left to repair. x is the greatest that the judge accepts, of some halvings.
- A row less. The answer that he dislikes most gets a token that is too far behind, so that the file is accepted without it. A node's record bounds
  how often.
- Another reward. A completion's nearest runners-up, up to `SWAPS` places a row, are each written on: of four completions the best is taken, of
  eight the worst, cheapest changes first, as long as the file's budget lasts.

Beside them stand honest files of the workers' own engine, and the bits a token that the budget leaves free, also for a GPU: there rounding of logits
is injected as noise, since no GPU was at hand. Called by `python -m benchmarks.trust adaptive` and by tests with fewer files.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from benchmarks.trust import weight_sets
from benchmarks.trust.engine_client import EngineProcess
from benchmarks.trust.in_process import PaperRun, paper_config
from benchmarks.trust.interval import clopper_pearson
from benchmarks.trust.models import TrainedModels, calibrate_engine, in_dtype
from benchmarks.trust.real_model import REAL_MODELS
from benchmarks.trust.real_model import served as served_real
from benchmarks.trust.right_model import RightModel
from shoal.contracts.proof_profile import PROFILE_FILE, drawn_gaps_in_force, read_profile
from shoal.contracts.protocol import Lease
from shoal.contracts.rollouts import Rollout
from shoal.contracts.verdicts import Verdict
from shoal.inference.completions import Completion
from shoal.inference.rollouts import PlannedRow
from shoal.models.head import logits_of
from shoal.proofs.calibration import drawn_gaps
from shoal.sampling import gumbel
from shoal.sampling.tails import at_least, too_many
from shoal.validation.checks.redraw import sum_allowed
from shoal.validation.models import load_model

KINDS = ("int8", "int4", "fp8", "older")
DTYPES = ("float32", "bfloat16", *REAL_MODELS)
"""The demo's model in two types of serving, and a real one in both, which has no older version."""
FILES, REAL_FILES = 8, 2
"""Of each kind of cheap weights, and of each direction of the reward: of the demo's model, and of a real one, whose files take minutes."""
HONEST_FILES = 24
FULL_BATCH = 128
SWAPS = 7
NODE_FILES = (10, 100)
"""Files of a node over which the effect of dropped rows is told: probation's, and more."""
BEST_OF, WORST_OF = 4, 8
TRIES = 5
"""Times that the judge is asked about one file; each time the liar wants half as much."""
CHANCE = 1e-4 / 12
"""About what the budget has of the default `falseRejectRate`: a sixth, half of it for the sum."""
GPU_LOGIT_NOISE = 0.125 / math.sqrt(12.0)
"""Nats, on either side: bfloat16 has 8 significant bits, so that logits between 16 and 32 are multiples of 1/8, and rounding is uniform."""
NOISE_ROUNDS = 10

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Written:
    """A completion of the liar: tokens, and for each place the margin of the runner-up (nats) and that token, under the right weights."""

    tokens: list[int]
    margins: list[float]
    runners_up: list[int]


@dataclass(frozen=True)
class Choice:
    """A place of a row where another token is written, and what it costs."""

    row: int
    place: int
    token: int
    nats: float


class Liar:
    """One type of serving: a run on paper, its judge, and the right weights."""

    def __init__(self, run: PaperRun, right: Path) -> None:
        self.run, self.folder = run, right
        self.right = load_model(right)
        self.prover = RightModel(right)
        profile = read_profile(right, self.right.config.hidden_size)
        self.dtype = str(next(self.right.parameters()).dtype).removeprefix("torch.")
        self.budget = drawn_gaps_in_force(run.config.validation.thresholds, profile, self.dtype)

    @torch.inference_mode()
    def write(
        self,
        planned: Sequence[PlannedRow],
        cheap: Any = None,
        most_behind: float = 0.0,
        forced: Sequence[Sequence[int]] = (),
    ) -> list[Written]:
        """Completions; `cheap` writes where it is at most `most_behind` nats behind. `forced[i]`: how completion i begins."""
        by_length: dict[int, list[int]] = defaultdict(list)
        for number, row in enumerate(planned):
            by_length[len(row.request.prompt_tokens)].append(number)
        found: dict[int, Written] = {}
        for numbers in by_length.values():
            group = self._write(
                [planned[number] for number in numbers],
                cheap,
                most_behind,
                [forced[number] if forced else () for number in numbers],
            )
            found |= dict(zip(numbers, group, strict=True))
        return [found[number] for number in range(len(planned))]

    def _write(
        self, planned: Sequence[PlannedRow], cheap: Any, most_behind: float, forced: Sequence[Sequence[int]]
    ) -> list[Written]:
        requests = [row.request for row in planned]
        tokens = torch.tensor([list(each.prompt_tokens) for each in requests])
        seeds = torch.tensor([each.seed for each in requests])
        models = [self.right] if cheap is None else [self.right, cheap]
        caches = [DynamicCache(config=model.config) for model in models]
        ends = torch.tensor(sorted(self.run.workshop.eos_token_ids))
        ended = torch.zeros(len(requests), dtype=torch.bool)
        columns: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        position = tokens.shape[1] - 1
        for step in range(max(each.max_tokens for each in requests)):
            logits = [
                logits_of(
                    model,
                    model.model(input_ids=tokens, past_key_values=cache, use_cache=True).last_hidden_state[:, -1],
                )
                / requests[0].temperature
                for model, cache in zip(models, caches, strict=True)
            ]
            positions = torch.full_like(seeds, position + step)
            chosen = gumbel.draw(logits[0], seeds, positions)
            second = gumbel.draw(logits[0].scatter(1, chosen[:, None], -math.inf), seeds, positions)
            margins, _ = gumbel.redraw(logits[0], second, seeds, positions)
            if cheap is not None:
                wanted = gumbel.draw(logits[1], seeds, positions)
                behind, _ = gumbel.redraw(logits[0], wanted, seeds, positions)
                chosen = torch.where(behind <= most_behind, wanted, chosen)
            for number, beginning in enumerate(forced):
                if step < len(beginning):
                    chosen[number] = beginning[step]
            columns.append((chosen, margins, second))
            tokens = chosen[:, None]
            ended |= torch.isin(chosen, ends)
            if ended.all():
                break
        drawn, margin, runner = (torch.stack(column, dim=1).tolist() for column in zip(*columns, strict=True))
        lengths = [
            next((place + 1 for place, token in enumerate(row) if token in ends), min(len(row), each.max_tokens))
            for row, each in zip(drawn, requests, strict=True)
        ]
        return [Written(drawn[n][:length], margin[n][:length], runner[n][:length]) for n, length in enumerate(lengths)]

    def rows(self, lease: Lease, planned: Sequence[PlannedRow], written: Sequence[Written]) -> list[Rollout]:
        """Rows with the rewards that they will have."""
        eos = self.run.workshop.eos_token_ids
        completions = [
            Completion(each.tokens, [0.0] * len(each.tokens), "stop" if each.tokens[-1] in eos else "length", b"")
            for each in written
        ]
        return self.run.rows(lease, planned, completions)

    def ask(self, lease: Lease, rows: Sequence[Rollout]) -> Verdict:
        """The public judge, on the file that would be handed in: every row proven, every row checked. RuntimeError where it judges nothing."""
        verdict = self.run.judge(self.run.write([self.prover.prove(row) for row in rows]), lease)
        if verdict.outcome == "inconclusive" or verdict.reason == "unread":
            raise RuntimeError(f"the judge had no answer, which says nothing of the file: {verdict.evidence}")
        return verdict

    def not_drawn(self, rows: Sequence[Rollout]) -> tuple[int, int]:
        """Tokens that are not what their seeds draw from the right weights, and all tokens."""
        gaps = np.concatenate([self.gaps(row) for row in rows])
        return int((gaps > 0).sum()), gaps.size

    def gaps(self, row: Rollout) -> Float32:
        """How far each token is behind, as a validator finds it."""
        logprobs = torch.from_numpy(self.prover.look(row).logprobs)
        seeds, positions = places(row)
        found: Float32 = gumbel.redraw(logprobs, torch.tensor(row.completion_tokens), seeds, positions)[0].numpy()
        return found

    def fits(self, gaps: Sequence[float], tokens: int) -> bool:
        """Whether tokens behind by these nats are within a file's budget."""
        often = at_least(len(gaps), self.budget.share * tokens) >= CHANCE
        return (
            often
            and sum(gaps) <= sum_allowed(self.budget, tokens, CHANCE)
            and max(gaps, default=0.0) <= self.budget.largest
        )


def places(row: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
    """Seeds and positions of a row's tokens, int64."""
    count = len(row.completion_tokens)
    return torch.full((count,), row.seed), torch.arange(count) + len(row.prompt_tokens) - 1


def cheap_tokens(liar: Liar, cheap: Any, number: int) -> dict[str, float]:
    """One file by cheap weights: the greatest share of tokens that the judge takes although their seeds draw others."""
    lease, planned = liar.run.lease(number)
    most_behind = liar.budget.largest
    for _ in range(TRIES):
        rows = liar.rows(lease, planned, liar.write(planned, cheap, most_behind))
        other, tokens = liar.not_drawn(rows)
        if liar.ask(lease, rows).outcome == "accept":
            return {"other": other, "tokens": tokens, "most_behind": most_behind}
        most_behind /= 2
    return {"other": 0, "tokens": tokens, "most_behind": 0.0}


@dataclass(frozen=True)
class Better:
    """An answer that suits the liar more than the one that the seed draws: by how much reward, what it costs, and the row."""

    gain: float
    choice: Choice
    row: Rollout


def better_answers(
    liar: Liar, lease: Lease, planned: Sequence[PlannedRow], most_behind: float, *, up: bool
) -> tuple[list[Rollout], list[Better]]:
    """The honest rows of a lease, and the answers that begin as these and go on at a runner-up, cheapest for their gain first.

    A runner-up is at most `most_behind` nats behind."""
    written = liar.write(planned)
    rows = liar.rows(lease, planned, written)
    honest = [float(row.reward or 0.0) for row in rows]
    others = (BEST_OF if up else WORST_OF) - 1
    choices = [
        Choice(row, place, each.runners_up[place], each.margins[place])
        for row, each in enumerate(written)
        for place in sorted(range(len(each.tokens)), key=each.margins.__getitem__)[: min(others, SWAPS)]
        if each.margins[place] <= most_behind
    ]
    if not choices:
        return rows, []
    beginnings = [[*written[each.row].tokens[: each.place], each.token] for each in choices]
    tried = liar.write([planned[each.row] for each in choices], forced=beginnings)
    completed = liar.rows(lease, [planned[each.row] for each in choices], tried)
    sign = 1.0 if up else -1.0
    found = [
        Better(sign * (float(row.reward or 0.0) - honest[each.row]), each, row)
        for each, row in zip(choices, completed, strict=True)
    ]
    return rows, sorted((each for each in found if each.gain > 0.0), key=lambda each: each.choice.nats / each.gain)


def moved_reward(liar: Liar, number: int, *, up: bool) -> float:
    """One file: how far its mean reward is moved among files that the judge accepts."""
    lease, planned = liar.run.lease(number)
    rows, better = better_answers(liar, lease, planned, liar.budget.largest, up=up)
    wanted: dict[int, Better] = {}
    tokens = sum(len(row.completion_tokens) for row in rows)
    for each in better:
        kept = [one.choice.nats for one in wanted.values()]
        if each.choice.row not in wanted and liar.fits([*kept, each.choice.nats], tokens):
            wanted[each.choice.row] = each
    for _ in range(TRIES):
        file = [wanted[n].row if n in wanted else row for n, row in enumerate(rows)]
        if liar.ask(lease, file).outcome == "accept":
            return (1.0 if up else -1.0) * sum(each.gain for each in wanted.values()) / len(rows)
        cheapest = sorted(wanted, key=lambda n: wanted[n].choice.nats)
        wanted = {n: wanted[n] for n in cheapest[: len(cheapest) // 2]}
    return 0.0


def dropped_row(liar: Liar, number: int, *, up: bool) -> tuple[float, int]:
    """One file whose worst row (or best, to move the reward down) is made an outlier: how far its mean reward is moved if the judge goes without the
    row, and the tokens that are left; 0 and no tokens where the judge rejects the file."""
    lease, planned = liar.run.lease(number)
    written = liar.write(planned)
    rows = liar.rows(lease, planned, written)
    honest = [float(row.reward or 0.0) for row in rows]
    chosen = (min if up else max)(range(len(rows)), key=honest.__getitem__)
    largest, each = liar.budget.largest, written[chosen]
    place = next((place for place, margin in enumerate(each.margins) if margin > 2 * largest), None)
    if place is None:
        return 0.0, 0
    [other] = liar.write([planned[chosen]], forced=[[*each.tokens[:place], each.runners_up[place]]])
    [changed] = liar.rows(lease, [planned[chosen]], [other])
    file = [changed if row == chosen else whole for row, whole in enumerate(rows)]
    verdict = liar.ask(lease, file)
    if verdict.outcome != "accept" or verdict.left_out != [chosen]:
        return 0.0, 0
    counted = [reward.reward for reward in verdict.rewards if reward.reward is not None]
    return float(np.mean(counted) - np.mean(honest)), verdict.completion_tokens


def drops(tokens: int, outliers: float, files: int) -> int:
    """In how many of a node's first `files` files of `tokens` tokens it can drop a row, if it always tries."""
    rows = 0
    for file in range(1, files + 1):
        rows += not too_many(rows + 1, file * tokens * outliers)
    return rows


def drop_aim(liar: Liar, files: int, first: int) -> dict[str, Any]:
    """What dropping a row moves: in the file, and a file on the average of a node's first files."""
    found: dict[str, Any] = {}
    for name, up in (("up", True), ("down", False)):
        tried = [dropped_row(liar, first + number, up=up) for number in range(files)]
        shift = float(np.mean([moved for moved, _ in tried]))
        tokens, outliers = int(np.mean([tokens for _, tokens in tried])), liar.budget.outliers or 0.0
        over = {of: shift * drops(tokens, outliers, of) / of if tokens else 0.0 for of in NODE_FILES}
        found[name] = {"a_file": shift, "over_files": over}
    return found


def honest_files(run: PaperRun, folder: Path, files: int, first: int) -> dict[str, Any]:
    """Files of the workers' own engine, with the weights in `folder`, before the same judge."""
    rejected, evidence = 0, ""
    length = run.config.recipe.max_sequence_length
    with EngineProcess(folder, max_sequence_length=length, batch=FULL_BATCH) as engine:
        leases = [run.lease(first + number) for number in range(files)]
        made = engine.generate(folder, [row.request for _, planned in leases for row in planned]).completions
    for number, (lease, planned) in enumerate(leases):
        own = made[number * len(planned) : (number + 1) * len(planned)]
        verdict = run.judge(run.write(run.rows(lease, planned, own)), lease)
        if verdict.outcome != "accept":
            rejected, evidence = rejected + 1, f"{verdict.reason}: {verdict.evidence}"[:300]
    upper = clopper_pearson(rejected, files)[1]
    return {"files": files, "rejected": rejected, "false_reject_rate_upper_95": upper, "evidence": evidence}


def free_bits(liar: Liar, number: int, noise: float = 0.0) -> dict[str, Any]:
    """Bits a token that a budget leaves free: places where another token is within it, and how many of these may be used.

    With `noise` (nats, standard deviation, on either side) the budget is calibrated on tokens that are drawn with it, as `shoal calibrate` would.
    """
    lease, planned = liar.run.lease(number)
    written = liar.write(planned)
    rows = liar.rows(lease, planned, written)
    budget = liar.budget
    if noise:
        chance = torch.Generator().manual_seed(number)
        gaps = [_noisy(liar, row, noise, chance) for _ in range(NOISE_ROUNDS) for row in rows]
        budget = drawn_gaps(np.concatenate(gaps), "bfloat16")
    margins = np.concatenate([each.margins for each in written])
    free = int((margins <= budget.largest).sum())
    used = next(count for count in range(1, margins.size) if at_least(count, budget.share * margins.size) < CHANCE) - 1
    ways = sum(math.comb(free, count) for count in range(min(free, used) + 1))
    return {
        "budget": budget.model_dump(),
        "tokens": int(margins.size),
        "places": free,
        "places_used_at_most": used,
        "bits_a_token": math.log2(ways) / margins.size,
    }


def _noisy(liar: Liar, row: Rollout, noise: float, chance: torch.Generator) -> Float32:
    logprobs = torch.from_numpy(liar.prover.look(row).logprobs)
    seeds, positions = places(row)
    ours, theirs = (logprobs + noise * torch.randn(logprobs.shape, generator=chance) for _ in range(2))
    found: Float32 = gumbel.redraw(ours, gumbel.draw(theirs, seeds, positions), seeds, positions)[0].numpy()
    return found


def served(made: TrainedModels, home: Path, dtype: str) -> tuple[PaperRun, Path]:
    """A run on paper in a type of serving, and the folder of its newest weights."""
    home.mkdir()
    if dtype in REAL_MODELS:
        return served_real(home, dtype)
    config, base, right = paper_config(), made.base, made.current
    if dtype != "float32":
        base, right = in_dtype(made.base, home / "base", dtype), in_dtype(made.current, home / "current", dtype)
        calibrate_engine(config, base)
        (right / PROFILE_FILE).write_bytes((base / PROFILE_FILE).read_bytes())
        config = paper_config({"validation": config.validation.model_copy(update={"thresholds": None})})
    return PaperRun(home / "run", config, base, right), right


def liar_of(made: TrainedModels, home: Path, dtype: str) -> tuple[Liar, Mapping[str, Any]]:
    """The liar of a type of serving, and its cheap models by name."""
    run, right = served(made, home, dtype)
    folders = {
        kind: weight_sets.derive(right, home / f"cheap-{kind}", weight_sets.CHANGES[kind])
        for kind in KINDS
        if kind != "older"
    }
    if dtype not in REAL_MODELS:
        folders["older"] = made.base if dtype == "float32" else home / "base"
    return Liar(run, right), {kind: load_model(folder) for kind, folder in folders.items()}


def measure(
    made: TrainedModels,
    home: Path,
    files: int | None = None,
    honest: int = HONEST_FILES,
    dtypes: Sequence[str] = DTYPES,
) -> dict[str, Any]:
    """Some six minutes a dtype on one core. `files`: None for `FILES`, or `REAL_FILES`."""
    return {
        dtype: of_dtype(
            *liar_of(made, home / f"adaptive-{dtype}", dtype),
            files or (REAL_FILES if dtype in REAL_MODELS else FILES),
            honest,
        )
        for dtype in dtypes
    }


def of_dtype(liar: Liar, cheap: Mapping[str, Any], files: int, honest: int) -> dict[str, Any]:
    """Everything for one type of serving."""
    kinds: dict[str, Any] = {}
    for place, (kind, model) in enumerate(cheap.items()):
        cheats = [cheap_tokens(liar, model, 100 * place + number) for number in range(files)]
        other, tokens = (sum(each[name] for each in cheats) for name in ("other", "tokens"))
        kinds[kind] = {"files": files, "share": other / tokens, "most_behind": [each["most_behind"] for each in cheats]}
    up = [moved_reward(liar, 1000 + number, up=True) for number in range(files)]
    down = [moved_reward(liar, 2000 + number, up=False) for number in range(files)]
    found: dict[str, Any] = {
        "files": files,
        "budget": liar.budget.model_dump(),
        "cheap": kinds,
        "cheap_token_share": max(each["share"] for each in kinds.values()),
        "reward_shifts_up": up,
        "reward_shifts_down": down,
        "dropped": drop_aim(liar, files, 2500),
        "reward_shift_up": float(np.mean(up)),
        "reward_shift_down": float(np.mean(down)),
        "free": free_bits(liar, 3000),
        "honest": honest_files(liar.run, liar.folder, honest, 4000),
    }
    if liar.dtype == "bfloat16":
        found["free_on_a_gpu"] = free_bits(liar, 3000, GPU_LOGIT_NOISE) | {"logit_noise": GPU_LOGIT_NOISE}
    return found
