"""Honest gaps and proofs on a GPU: what a worker decodes there, and what validators make of it, on a GPU and on a CPU.

In: the demo's base model and SmolLM2-135M-Instruct (`carried`), prompts of the arithmetic environment. Rows are decoded with a cache in batches of
1, 8 and 64, drawn by the sampler's rule. They are looked at again as a validator does (`validation.prefill`): in its padded batches and one by one on
the GPU, and on the CPU in the same type and in float32. Out, for each: how far tokens are behind those that seeds draw there, and how far proofs are
off. And how many honest files are rejected by the bounds that calibration (`proofs.calibration`) makes of other rows of this GPU. Then the cheat:
files by int8, fp8 and int4 weights, and how many of their tokens a liar keeps who knows the bounds.

transformers decodes, not vLLM, whose kernels differ: vLLM is too large to carry. Rows of a batch have prompts of one length.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarks.gpu import carried
from benchmarks.gpu.part import Asked, run_part
from benchmarks.trust.weight_sets import CHANGES
from shoal.contracts.model_source import GeneratedModel
from shoal.contracts.pools import SAMPLER
from shoal.contracts.proof_profile import DRAWN_GAPS
from shoal.contracts.protocol import ValidationJob
from shoal.contracts.rollouts import Rollout, RolloutMetadata
from shoal.contracts.thresholds import DrawnGaps, ProofThresholds
from shoal.contracts.validation import Validation
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.generated_model import random_model, tokenizer_for
from shoal.environments.prompts import load_tokenizer, prompt_tokens
from shoal.environments.tokens import eos_token_ids
from shoal.models.head import logits_of
from shoal.proofs.calibration import Compared, ServedErrors, thresholds_for
from shoal.proofs.chunks import layout
from shoal.proofs.forward import Draw, decode_batch
from shoal.proofs.masking import masked_dimensions
from shoal.sampling import gumbel
from shoal.toploc import codec
from shoal.toploc.top_points import Bool, Float32
from shoal.validation.checks import redraw
from shoal.validation.facts import File
from shoal.validation.prefill import Prefill, prefill, prefill_rows
from shoal.validation.sequential import chance_of_a_part

CHEAP = ("int8", "fp8", "int4")
TARGETS = (20, 24, 28)
TRIES = 5
"""Times that a liar asks the judge about a file, each time with half of what may be chosen."""
MOST_LENGTHS = 4
"""Lengths of prompts that are taken, the most frequent ones."""
CHANCE = chance_of_a_part(Validation.model_validate({}), looks_at_most=1)
"""As on probation, where every row is looked at once."""
MANTISSAS = 128.0
"""Beyond every mantissa error; in place of infinity, where no exponent agrees."""
HEX = "0" * 64


@dataclass(frozen=True)
class Case:
    """A model in a type of serving. `rows`: by the size of the batch that decodes them; calibration takes as many others of the largest batch."""

    name: str
    folder: Path
    dtype: torch.dtype
    rows: Mapping[int, int]
    rows_a_file: int
    tokens: int
    on_cpu: int
    """Rows that the CPU looks at, of each size of batch."""
    share: float
    """Of the seconds."""


CASES = (
    Case("smollm2_bfloat16", carried.REAL, torch.bfloat16, {64: 384, 8: 64, 1: 16}, 16, 64, 64, 0.7),
    Case("demo_bfloat16", carried.DEMO, torch.bfloat16, {64: 960, 8: 192, 1: 48}, 48, 32, 192, 0.65),
    Case("demo_float32", carried.DEMO, torch.float32, {64: 960, 8: 192, 1: 48}, 48, 32, 192, 1.0),
)


@dataclass(frozen=True)
class Row:
    """One completion as its worker made it: the states that it was drawn from, float32 [tokens, hidden size], stay on the host."""

    rollout: Rollout
    states: Float32


@dataclass(frozen=True)
class Bounds:
    """What a file is judged by."""

    budget: DrawnGaps
    thresholds: ProofThresholds
    mask: Bool | None


@dataclass(frozen=True)
class Look:
    """What one validator sees of rows: gaps a row, and errors of the proofs a row."""

    gaps: Sequence[Float32]
    errors: Sequence[codec.ErrorTable]
    prefills: Sequence[Prefill]


def measure(asked: Asked) -> None:
    asked.note(left_out=[])
    for case in _tiny() if asked.tiny else CASES:
        if not (asked.tiny or case.folder.exists()):
            asked.note(
                left_out=[*asked.figures["left_out"], f"{case.name}: not brought along (`benchmarks.gpu.carried`)"]
            )
            continue
        if asked.left <= 0:
            asked.note(left_out=[*asked.figures["left_out"], f"{case.name}: no time"])
            continue
        found: dict[str, Any] = {}
        for name, figures in _of_case(case, asked, time.monotonic() + case.share * asked.left):
            found[name] = figures
            asked.note(**{case.name: found})


def _of_case(case: Case, asked: Asked, end: float) -> Iterator[tuple[str, Any]]:
    """Figures by name, as they come. The judge's are for all files of a look together."""
    model, tokenizer, ends = _loaded(case, asked)
    model = model.to(asked.device)
    generator = np.random.default_rng(7)
    environment = Arithmetic()
    prompts = [
        prompt_tokens(tokenizer, environment, task, TARGETS[number % len(TARGETS)], None)
        for number, task in enumerate(environment.tasks(2048, 3))
    ]
    by_length = _by_length(prompts)
    largest = max(case.rows)
    bounds, size = _calibrated(model, _decoded(model, by_length, generator, case, largest, end), ends)
    name = str(case.dtype).removeprefix("torch.")
    dump = {"calibrated_budget": bounds.budget.model_dump(), "thresholds": bounds.thresholds.model_dump()}
    yield "bounds", dump | {"calibration_tokens": size, "default_budget": DRAWN_GAPS[name].model_dump()}
    rows = {batch: _decoded(model, by_length, generator, case, batch, end) for batch in case.rows}
    judge = _Judge(bounds, DRAWN_GAPS[name], case.rows_a_file)
    looks: dict[str, Any] = {}
    for batch, made in rows.items():
        looks[f"decoded_in_batches_of_{batch}"] = {
            "gpu_padded_batches": judge.figures(_look(model, made, ends, bounds.mask), made),
            "gpu_one_by_one": judge.figures(_look(model, made[: case.on_cpu], ends, bounds.mask, alone=True), made),
        }
        yield "honest", looks
    cheats: dict[str, Any] = {}
    late: list[str] = []
    for kind in CHEAP:
        if time.monotonic() >= end:
            late.append(kind)
            continue
        cheats[kind] = _cheat(model, kind, by_length, generator, case, judge, ends)
        yield "cheap_weights", cheats
    model = model.to("cpu")
    types = {name: case.dtype, "float32": torch.float32}
    for kind, dtype in types.items():
        model = model.to(dtype)
        for batch, made in rows.items():
            if time.monotonic() >= end and batch != largest:
                late.append(f"cpu_{kind}, batches of {batch}")
            else:
                look = _look(model, made[: case.on_cpu], ends, bounds.mask)
                looks[f"decoded_in_batches_of_{batch}"][f"cpu_{kind}"] = judge.figures(look, made)
                yield "honest", looks
    yield "no_time_for", late


def _decoded(
    model: Any, by_length: Sequence[Sequence[list[int]]], generator: Any, case: Case, batch: int, end: float
) -> list[Row]:
    """As many rows as the case has of this batch, at least a file's."""
    made: list[Row] = []
    while len(made) < case.rows[batch] and (len(made) < case.rows_a_file or time.monotonic() < end):
        prompts, seeds = _some(by_length, generator, batch)
        made += decode_rows(model, prompts, seeds, case.tokens, _by_rule(seeds, len(prompts[0])))
    return made


def _some(by_length: Sequence[Sequence[list[int]]], generator: Any, count: int) -> tuple[list[list[int]], list[int]]:
    """Prompts of one length, and their seeds."""
    group = by_length[int(generator.integers(len(by_length)))]
    return [group[int(each)] for each in generator.integers(len(group), size=count)], [
        int(each) for each in generator.integers(1 << 63, size=count)
    ]


def decode_rows(model: Any, prompts: list[list[int]], seeds: list[int], tokens: int, draw: Draw) -> list[Row]:
    """One batch, as rows without proofs."""
    return [
        Row(_rollout(each.prompt, each.completion, seed), each.states)
        for each, seed in zip(decode_batch(model, prompts, tokens, draw), seeds, strict=True)
    ]


def _by_rule(seeds: Sequence[int], prompt: int) -> Draw:
    given = torch.tensor(seeds)

    def draw(logits: torch.Tensor, read: torch.Tensor, step: int) -> torch.Tensor:
        here = given.to(logits.device)
        # As the engine's hook and the validator do it: log-probabilities at the temperature, which is 1.
        return gumbel.draw(torch.log_softmax(logits, dim=-1), here, torch.full_like(here, prompt - 1 + step))

    return draw


def _by_cheap_weights(cheap: Any, seeds: Sequence[int], prompt: int, most_behind: float) -> Draw:
    """What the cheap weights draw, where the right ones are at most so many nats ahead with theirs; else that of the right ones."""
    cache, given = DynamicCache(config=cheap.config), torch.tensor(seeds)

    def draw(logits: torch.Tensor, read: torch.Tensor, step: int) -> torch.Tensor:
        here = given.to(logits.device)
        positions = torch.full_like(here, prompt - 1 + step)
        last = cheap.model(input_ids=read, past_key_values=cache, use_cache=True).last_hidden_state[:, -1]
        wanted = gumbel.draw(torch.log_softmax(logits_of(cheap, last), dim=-1), here, positions)
        behind, drawn = gumbel.redraw(torch.log_softmax(logits, dim=-1), wanted, here, positions)
        return torch.where(behind <= most_behind, wanted, drawn)

    return draw


def _look(model: Any, rows: Sequence[Row], ends: frozenset[int], mask: Bool | None, *, alone: bool = False) -> Look:
    """The rows as a validator sees them: by its batches, or one at a time."""
    numbered = {number: row.rollout for number, row in enumerate(rows)}
    if alone:
        batches: Any = ({number: prefill(model, row, ends, SAMPLER)} for number, row in numbered.items())
    else:
        batches = prefill_rows(model, numbered, ends, SAMPLER)
    prefills: dict[int, Prefill] = {}
    errors: dict[int, codec.ErrorTable] = {}
    for batch in batches:
        for number, ours in batch.items():
            claimed = codec.encode(rows[number].states, mask)
            proofs = codec.parse(claimed, len(ours.states), ours.states.shape[1])
            errors[number] = codec.error_table(proofs, ours.states, mask)
            prefills[number] = ours.judged(errors[number].mantissa_error_mean.tolist())
    order = range(len(rows))
    gaps = [ours.gaps for ours in (prefills[number] for number in order) if ours.gaps is not None]
    return Look(gaps, [errors[number] for number in order], [prefills[number] for number in order])


def _calibrated(model: Any, rows: Sequence[Row], ends: frozenset[int]) -> tuple[Bounds, int]:
    """Bounds as `shoal calibrate --engine` makes them of an engine's rows, this loop in the engine's place; and how many tokens they rest on."""
    masked = masked_dimensions([row.states for row in rows])
    mask = np.isin(np.arange(rows[0].states.shape[1]), masked) if masked else None
    look = _look(model, rows, ends, mask, alone=True)
    table, gaps = _together(look.errors), np.concatenate(look.gaps)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    served = ServedErrors(Compared(layout([len(each) for each in look.gaps]), table), gaps)
    thresholds = thresholds_for(table, dtype, served)
    assert thresholds.drawn_gaps is not None
    return Bounds(thresholds.drawn_gaps, thresholds, mask), gaps.size


@dataclass(frozen=True)
class _Judge:
    """The two checks that rounding can fail, on all rows of each file."""

    bounds: Bounds
    default: DrawnGaps
    rows_a_file: int

    def figures(self, look: Look, rows: Sequence[Row]) -> dict[str, Any]:
        """Of all rows that were looked at; files are of successive rows, a rest left out."""
        gaps, table = np.concatenate(look.gaps).astype(float), _together(look.errors)
        mismatches = table.exponent_mismatches + table.sign_mismatches
        count = self.rows_a_file
        files = [slice(start, start + count) for start in range(0, len(look.gaps) - count + 1, count)]
        sums = [np.concatenate(look.gaps[file]).astype(float) for file in files]
        allowed = [redraw.sum_allowed(self.bounds.budget, each.size, CHANCE / 2) for each in sums]
        return {
            "rows": len(look.gaps),
            "tokens": gaps.size,
            "tokens_not_drawn": int((gaps > 0).sum()),
            "share_not_drawn": float((gaps > 0).mean()),
            "mean_gap_nats": float(gaps.mean()),
            "deviation_nats": float(gaps.std()),
            "gap_999_permille_nats": float(np.quantile(gaps, 0.999)),
            "largest_gap_nats": float(gaps.max()),
            "files": len(files),
            "largest_sum_of_a_file_nats": max((float(each.sum()) for each in sums), default=0.0),
            "largest_share_of_allowed_sum": max(
                (float(each.sum()) / most for each, most in zip(sums, allowed, strict=True)), default=0.0
            ),
            "files_rejected_calibrated_budget": sum(
                self.refused(look, rows, file, self.bounds.budget) for file in files
            ),
            "files_rejected_default_budget": sum(self.refused(look, rows, file, self.default) for file in files),
            "proofs": len(table),
            "most_exponents_and_signs_that_differ": int(mismatches.max()),
            "mean_mantissa_error": float(np.minimum(table.mantissa_error_mean, MANTISSAS).mean()),
            "largest_mantissa_error_mean": float(np.minimum(table.mantissa_error_mean, MANTISSAS).max()),
            "largest_mantissa_error_median": float(np.minimum(table.mantissa_error_median, MANTISSAS).max()),
            "proofs_rejected_calibrated": int((~table.accepted(self.bounds.thresholds)).sum()),
            "proofs_rejected_published": int((~table.accepted(ProofThresholds())).sum()),
            "files_rejected_by_proofs": sum(self.unproven(_together(look.errors[file])) for file in files),
        }

    def refused(self, look: Look, rows: Sequence[Row], file: slice, budget: DrawnGaps) -> bool:
        """Whether the redraw check rejects this file."""
        whole = _file([row.rollout for row in rows[file]])
        prefills = dict(enumerate(look.prefills[file]))
        beyond = redraw.outliers(whole, prefills, budget)
        kept = {number: each for number, each in prefills.items() if number not in beyond}
        found = redraw.check(beyond, whole.rows, budget, CHANCE) or redraw.check_budget(whole, kept, budget, CHANCE)
        return found is not None

    def unproven(self, table: codec.ErrorTable) -> bool:
        """Whether proofs alone reject it."""
        thresholds = self.bounds.thresholds
        mean = float(table.mantissa_error_mean.mean())
        return not table.accepted(thresholds).all() or mean > codec.file_mean_allowed(thresholds, len(table), CHANCE)


def _cheat(
    model: Any,
    kind: str,
    by_length: Sequence[Sequence[list[int]]],
    generator: Any,
    case: Case,
    judge: _Judge,
    ends: frozenset[int],
) -> dict[str, Any]:
    """One file by cheap weights alone, with their own proofs; and one by a liar who proves with the right weights and knows the budget."""
    cheap = _cheaper(model, kind)
    prompts, seeds = _some(by_length, generator, case.rows_a_file)
    alone = decode_rows(cheap, prompts, seeds, case.tokens, _by_rule(seeds, len(prompts[0])))
    found = {"by_these_weights_alone": judge.figures(_look(model, alone, ends, judge.bounds.mask), alone)}
    most, shares = judge.bounds.budget.largest, []
    for _ in range(TRIES):
        draw = _by_cheap_weights(cheap, seeds, len(prompts[0]), most)
        rows = decode_rows(model, prompts, seeds, case.tokens, draw)
        look = _look(model, rows, ends, judge.bounds.mask)
        gaps = np.concatenate(look.gaps)
        accepted = not judge.refused(look, rows, slice(0, len(rows)), judge.bounds.budget)
        shares.append({"most_behind_nats": most, "share_not_drawn": float((gaps > 0).mean()), "accepted": accepted})
        if accepted:
            break
        most /= 2
    passed = shares[-1]["share_not_drawn"] if shares[-1]["accepted"] else 0.0
    return found | {"adaptive_tries": shares, "cheap_token_share_accepted": passed}


def _cheaper(model: Any, kind: str) -> Any:
    """The model with weights that were made cheap and are of the same type again."""
    held = model.state_dict()
    changed = CHANGES[kind](dict(held))
    with torch.device("meta"):
        cheap = type(model)(model.config)
    cheap.load_state_dict({name: changed[name].to(tensor.dtype) for name, tensor in held.items()}, assign=True)
    cheap.generation_config = model.generation_config
    # Buffers that no state dict has, the rotary frequencies, were made on no device.
    for (_, ours), (_, theirs) in zip(model.named_modules(), cheap.named_modules(), strict=True):
        for name in ours._non_persistent_buffers_set:
            theirs.register_buffer(name, getattr(ours, name), persistent=False)
        if hasattr(ours, "original_inv_freq"):
            theirs.original_inv_freq = ours.original_inv_freq
    return cheap.eval()


def _loaded(case: Case, asked: Asked) -> tuple[Any, Any, frozenset[int]]:
    """Model, tokenizer, and the tokens that end a completion."""
    if asked.tiny:
        torch.manual_seed(0)
        tokenizer = tokenizer_for(Arithmetic(), TARGETS, 0)
        spec = GeneratedModel.model_validate({"hiddenSize": 128, "layers": 1})
        model: Any = random_model(spec, tokenizer, 256)
        return model.to(case.dtype).eval(), tokenizer, frozenset({tokenizer.eos_token_id})
    loaded = AutoModelForCausalLM.from_pretrained(case.folder, dtype=case.dtype, use_safetensors=True)
    return loaded.eval(), load_tokenizer(case.folder), eos_token_ids(case.folder)


def _by_length(prompts: Sequence[list[int]]) -> list[list[list[int]]]:
    """Prompts of the most frequent lengths, a list a length."""
    found: dict[int, list[list[int]]] = {}
    for prompt in prompts:
        found.setdefault(len(prompt), []).append(prompt)
    return sorted(found.values(), key=len, reverse=True)[:MOST_LENGTHS]


def _together(tables: Sequence[codec.ErrorTable]) -> codec.ErrorTable:
    names = ("exponent_mismatches", "sign_mismatches", "mantissa_error_mean", "mantissa_error_median")
    return codec.ErrorTable(*(np.concatenate([getattr(each, name) for each in tables]) for name in names))


def _tiny() -> list[Case]:
    """The same on a random model of one layer, in both types."""
    return [
        replace(case, rows={4: 8, 1: 4}, rows_a_file=4, tokens=8, on_cpu=4, share=1.0)
        for case in CASES
        if case.folder == carried.DEMO
    ]


def _rollout(prompt: list[int], completion: list[int], seed: int) -> Rollout:
    return Rollout(
        run="gpu", step=0, policy_version=0, node=HEX, submission=0, problem_id="0", prompt_index=0, sample_index=0,
        prompt_tokens=prompt, completion_tokens=completion, completion_logprobs=[0.0] * len(completion),
        completion_mask=[True] * len(completion), finish_reason="length", task_type="arithmetic", target_length=None,
        task_reward=None, length_penalty=None, reward=None, seed=seed, temperature=1.0, proofs=b"",
    )  # fmt: skip


def _file(rows: Sequence[Rollout]) -> File:
    job = ValidationJob(
        claim="aa" * 16, run="gpu", node=HEX, lease="aa" * 16, step=0, submission=0, sha256=HEX, size=1, beacon=HEX,
        min_version=0, max_version=0, sampler=SAMPLER,
    )  # fmt: skip
    return File(job, rows, RolloutMetadata("gpu", HEX, HEX, "0"))


if __name__ == "__main__":
    run_part(measure)
