"""The table of cheats: what each dishonest worker does, and the reason for which the validators must reject its file.

A row says which weights generate, what is asked of the engine and how the file is made of the completions. `evidence` is a pattern in the
verdict's evidence. The reasons are those of `shoal.contracts.verdicts`.
"""

from dataclasses import replace

import cheats
import forging
from arena import TRUSTED_POOL
from cheats import Cheat, eos, every, nothing, one, plainly, proven
from parquet_bombs import BOMBS

from shoal.toploc import codec

NOT_OF = "does not fit version 1"
SEEDS = "tokens are not what seed"

WEIGHTS = [
    Cheat("other-model", "generates with another model", "computation", NOT_OF, plainly, "other"),
    Cheat("older-version", "generates with the version before", "computation", NOT_OF, plainly, "base"),
    Cheat("int8-weights", "generates with 8-bit weights", "computation", NOT_OF, plainly, "int8"),
    Cheat("fp8-weights", "generates with 8-bit floating point weights", "computation", NOT_OF, plainly, "fp8"),
    Cheat("int4-weights", "generates with 4-bit weights", "computation", NOT_OF, plainly, "int4"),
    Cheat("bfloat16-weights", "generates with weights rounded to bfloat16", "computation", NOT_OF, plainly, "bfloat16"),
    Cheat(
        "smaller-model-right-proofs",
        "lets a smaller model write and proves it with the right one",
        "redraw",
        SEEDS,
        proven(cheats.as_sampled),
        "shallow",
    ),
]

TOKENS = [
    Cheat(
        "hidden-prompt", "samples for another prompt than it says", "computation", NOT_OF, plainly, ask=cheats.hinted
    ),
    Cheat(
        "edited-prompt",
        "hands in another prompt",
        "sampling",
        "prompt_tokens are not those of",
        one(0, lambda row: replace(row, prompt_tokens=list(row.prompt_tokens)[::-1])),
    ),
    Cheat(
        "edited-tokens",
        "changes tokens and keeps the proofs",
        "computation",
        NOT_OF,
        every(lambda row: forging.edited(row, len(row.completion_tokens) // 2, [5, 6])),
    ),
    Cheat(
        "edited-answer-right-proofs",
        "changes the last digit before the end and proves it again",
        "redraw",
        SEEDS,
        proven(lambda entry, scene, row: forging.edited(row, -2, cheats.tokens_of(entry, "7")[-1:])),
    ),
    Cheat("written-by-hand", "writes right answers and proves them", "redraw", SEEDS, proven(cheats.gold)),
    Cheat(
        "early-stop",
        "stops every completion after three tokens",
        "redraw",
        SEEDS,
        proven(lambda entry, scene, row: forging.cut(row, 3, eos(entry))),
    ),
    Cheat(
        "early-stop-without-end",
        "cuts completions and calls it the length limit",
        "termination",
        "finish_reason is length after",
        every(lambda row: forging.with_tokens(row, row.completion_tokens[:5], "length")),
    ),
    Cheat("early-stop-in-one-row", "stops one completion of the file", "redraw", SEEDS, cheats.one_cut),
    Cheat(
        "unlikely-end",
        "ends where an end is least unlikely",
        "redraw",
        SEEDS,
        proven(lambda entry, scene, row: forging.likeliest_end(row, scene.model, eos(entry))),
    ),
    Cheat(
        "false-logprobs",
        "claims that likely tokens were improbable",
        "token_sampling",
        "claimed log-probabilities differ",
        every(lambda row: forging.certain_of_less(row, 3)),
    ),
]

NOT_REDRAWN = [
    Cheat(
        "smaller-model-not-redrawn",
        "lets a smaller model write and proves it, where nobody draws again",
        "token_sampling",
        "tokens have a",
        proven(cheats.as_sampled),
        "shallow",
        pool=TRUSTED_POOL,
    ),
    Cheat(
        "early-stop-not-redrawn",
        "stops every completion after three tokens, where nobody draws again",
        "token_sampling",
        "tokens have a probability below",
        proven(lambda entry, scene, row: forging.cut(row, 3, eos(entry))),
        pool=TRUSTED_POOL,
    ),
    Cheat(
        "some-early-stops-not-redrawn",
        "ends one completion of six where an end is least unlikely",
        "termination",
        "checked completions end with a probability below",
        cheats.some_cut,
        pool=TRUSTED_POOL,
    ),
    Cheat(
        "greedy-not-redrawn",
        "takes the likeliest token every time, where nobody draws again",
        "token_sampling",
        "",
        proven(cheats.as_sampled),
        ask=cheats.greedy,
        pool=TRUSTED_POOL,
        files=3,
    ),
]

SAMPLING = [
    Cheat(
        "cherry-picked-prompts",
        "serves easy problems instead of those drawn",
        "sampling",
        "drawn is",
        lambda entry, scene: cheats.as_mine(scene.stranger, entry),
        ask=nothing,
    ),
    Cheat(
        "cherry-picked-samples",
        f"samples {cheats.SAMPLES} times and hands in the best",
        "redraw",
        SEEDS,
        cheats.best_samples,
        ask=lambda entry: forging.other_seeds(entry.requests, cheats.SAMPLES),
    ),
    Cheat(
        "wrong-seed",
        "samples with seeds of its own",
        "redraw",
        SEEDS,
        plainly,
        ask=lambda entry: forging.other_seeds(entry.requests, 1),
    ),
    Cheat(
        "another-seed-claimed",
        "says which seed it took",
        "sampling",
        "seed is 42, drawn is",
        one(5, lambda row: replace(row, seed=42)),
    ),
    Cheat(
        "cheats.colder",
        "samples at half the temperature",
        "redraw",
        SEEDS,
        proven(cheats.as_sampled),
        ask=cheats.colder,
    ),
    Cheat(
        "another-temperature-claimed",
        "says at which temperature it sampled",
        "sampling",
        "temperature is 0.5",
        every(lambda row: replace(row, temperature=0.5)),
    ),
    Cheat(
        "row-left-out",
        "leaves out a row",
        "sampling",
        "the file has 47 rows",
        lambda entry, scene: entry.write(entry.rows()[:-1]),
    ),
]

CLAIMS = [
    Cheat(
        "inflated-reward",
        "claims full marks",
        "reward",
        "task_reward is claimed as 1, computed again it is 0",
        every(lambda row: replace(row, task_reward=1.0)),
    ),
    Cheat(
        "lessened-penalty",
        "claims to have met every target length",
        "reward",
        "length_penalty is claimed as 0",
        every(lambda row: replace(row, length_penalty=0.0, reward=row.task_reward)),
    ),
    Cheat(
        "version-to-come",
        "claims a version that is not out",
        "identity",
        "policy_version is 9",
        every(lambda row: replace(row, policy_version=9)),
    ),
    Cheat(
        "false-digest",
        "names other weights in its metadata",
        "identity",
        "weights_digest is",
        lambda entry, scene: entry.write(entry.rows(), weights_digest="../../../etc/passwd"),
    ),
    Cheat(
        "other-nodes-file",
        "hands in another node's file",
        "identity",
        "node is",
        lambda entry, scene: entry.write(scene.stranger),
        ask=nothing,
    ),
    Cheat(
        "replayed-file",
        "hands in its own accepted file again",
        None,
        "same bytes",
        lambda entry, scene: scene.own_file,
        ask=nothing,
        veteran=True,
    ),
    Cheat(
        "replayed-rows",
        "writes its accepted rows into a new file",
        "identity",
        "is for",
        lambda entry, scene: entry.write(scene.own_rows),
        ask=nothing,
        veteran=True,
    ),
    Cheat(
        "renumbered-rows",
        "writes them under the new lease's names",
        "sampling",
        "drawn is",
        lambda entry, scene: cheats.as_mine(scene.own_rows, entry),
        ask=nothing,
        veteran=True,
    ),
    Cheat(
        "one-sample-as-many", "hands in one completion as a whole group", "redraw", SEEDS, cheats.one_sample_many_times
    ),
]

PROOFS = [
    Cheat(
        "null-proofs",
        "proofs of zeros",
        "computation",
        "modulus 0",
        every(lambda row: forging.forged_proofs(row, [0] * 129)),
    ),
    Cheat(
        "constant-proofs",
        "proofs by a constant",
        "computation",
        "degree is below 126",
        every(lambda row: forging.forged_proofs(row, [codec.PRIME, 0x4010, *[0] * 127])),
    ),
    Cheat(
        "low-degree-proofs",
        "proofs of degree 125",
        "computation",
        "degree is below 126",
        lambda entry, scene: entry.write([forging.low_degree(row, scene.model) for row in entry.rows()]),
    ),
    Cheat("dimension-prior-proofs", "proofs of the model's mean state", "computation", NOT_OF, cheats.dimension_prior),
    Cheat(
        "sign-flipped-proofs",
        "proofs with every sign turned",
        "computation",
        "128 signs differ",
        lambda entry, scene: entry.write([forging.sign_flipped(row, scene.model) for row in entry.rows()]),
    ),
    Cheat(
        "random-proofs",
        "proofs of random words",
        "computation",
        NOT_OF,
        every(lambda row: forging.forged_proofs(row, cheats.random_words())),
    ),
    Cheat("neighbours-proofs", "honest proofs of other rows", "computation", NOT_OF, cheats.neighbours_proofs),
    Cheat(
        "truncated-proofs",
        "proofs without their last byte",
        "computation",
        "bytes of proofs for",
        every(lambda row: replace(row, proofs=row.proofs[:-1])),
    ),
    Cheat(
        "over-long-proofs",
        "one proof more than there are chunks",
        "computation",
        "bytes of proofs for",
        every(lambda row: replace(row, proofs=row.proofs + row.proofs[-codec.PROOF_BYTES :])),
    ),
    Cheat(
        "no-proofs",
        "no proofs at all",
        "computation",
        "bytes of proofs for",
        every(lambda row: replace(row, proofs=b"")),
    ),
]

FILES = [
    Cheat(
        bomb.name,
        bomb.does,
        bomb.reason,
        bomb.evidence,
        lambda entry, scene, bomb=bomb: bomb.build(cheats.as_mine(scene.stranger, entry)),
        ask=nothing,
    )
    for bomb in BOMBS
]


CHEATS: list[Cheat] = [*WEIGHTS, *TOKENS, *NOT_REDRAWN, *SAMPLING, *CLAIMS, *PROOFS, *FILES]
