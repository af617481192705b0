"""What it costs to make a file and what it costs to verify it, in CPU seconds; and what the measured rates say about a file of the paper's size.

In: the demo's models. Out: seconds of generation (vLLM in a process of its own) over seconds of all checks at the demo's rates, for long
completions; an extrapolation with its arithmetic.
"""

import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.trust.cpu_time import cpu_seconds
from benchmarks.trust.engine_client import EngineProcess
from benchmarks.trust.honest import long_config
from benchmarks.trust.in_process import GOOD_STANDING, PaperRun
from benchmarks.trust.models import TrainedModels, calibrate, for_long_completions
from benchmarks.trust.page import ALL_ROWS
from shoal.contracts.verdicts import Verdict
from shoal.toploc import codec

TOKENS = 1024
FILES = 2
REPEATS = 3
PAPER = {"rows": 64, "tokens_a_row": 10_000, "parameters": 32e9, "hidden_size": 5120, "proof_rows_share": 0.1}
"""INTELLECT-2: QwQ-32B, 16 completions of 4 prompts a file, ten thousand tokens each as its long target lengths ask for."""
ACCELERATOR_FLOPS = 400e12
"""Prefill on one H100: 40 % of its 989 TFLOP/s in bfloat16. Assumed, not measured here."""
SAMPLE_CHUNKS = 64


def measure(made: TrainedModels, home: Path) -> dict[str, Any]:
    """Some five minutes on one core."""
    groups = 6
    config = long_config(TOKENS, groups)
    length = config.recipe.max_sequence_length
    base = for_long_completions(made.base, home / "cost-base", length)
    calibrate(config, base)
    run = PaperRun(home / "cost", config, base)
    leases = [run.lease(number) for number in range(FILES + 1)]
    files, generating, tokens = [], 0.0, 0
    with EngineProcess(base, max_sequence_length=length, batch=groups * config.recipe.group_size) as engine:
        for number, (lease, planned) in enumerate(leases):
            generated = engine.generate(base, [row.request for row in planned])
            if number > 0:  # the first one warms up
                generating += generated.cpu_seconds
                tokens += sum(len(each.tokens) for each in generated.completions)
            files.append((lease, run.write(run.rows(lease, planned, generated.completions))))
    run.judge(files[0][1], files[0][0])  # loads the weights and starts the parser
    standing = {
        "good_standing": [_judged(run, files, accepted_files=GOOD_STANDING) for _ in range(REPEATS)],
        "probation": [_judged(run, files, accepted_files=0) for _ in range(REPEATS)],
    }
    verifying = {name: median(seconds for seconds, _ in found) / FILES for name, found in standing.items()}
    making = generating / FILES
    return {
        "model": "the demo's base model, float32",
        "rows_a_file": len(leases[0][1]),
        "tokens_a_file": tokens / FILES,
        "generate_cpu_seconds": making,
        "verify_cpu_seconds": verifying,
        "generate_over_verify": {name: making / seconds for name, seconds in verifying.items()},
        "rows_checked": {name: found[0][1][0].proof_rows for name, found in standing.items()},
        "seconds_by_check": {name: found[0][1][0].seconds_by_check for name, found in standing.items()},
        "file_bytes": max(len(data) for _, data in files),
        # What else the machine does only ever adds to seconds of the clock.
        "paper_size": paper_size(
            min((each for _, found in standing["good_standing"] for each in found), key=lambda each: each.check_seconds)
        ),
    }


def _judged(run: PaperRun, files: list[tuple[Any, bytes]], accepted_files: int) -> tuple[float, list[Verdict]]:
    """CPU seconds of judging all files but the first, and the verdicts; raises AssertionError when one is not accepted."""
    started = cpu_seconds()
    verdicts = [run.judge(data, lease, accepted_files=accepted_files) for lease, data in files[1:]]
    seconds = cpu_seconds() - started
    for verdict in verdicts:
        assert verdict.outcome == "accept", f"an honest long file: {verdict.reason} {verdict.evidence}"
    return seconds, verdicts


def paper_size(verdict: Verdict) -> dict[str, Any]:
    """Seconds for a file of the paper's size, from the seconds of one of ours; each term with its arithmetic in words."""
    spent = verdict.seconds_by_check
    all_tokens = PAPER["rows"] * PAPER["tokens_a_row"]
    checked = np.ceil(PAPER["proof_rows_share"] * PAPER["rows"]) * PAPER["tokens_a_row"]
    our_tokens = verdict.completion_tokens
    our_checked = our_tokens * verdict.proof_rows / verdict.rows
    every = sum(spent.get(name, 0.0) for name in ("parse", "cheap_checks", "tools", "reward")) / our_tokens
    some = sum(spent.get(name, 0.0) for name in ("redraw", "token_sampling", "termination")) / our_checked
    chunk = _compare_seconds(int(PAPER["hidden_size"]))
    terms = {
        ALL_ROWS: every * all_tokens,
        "prefill (one accelerator)": 2 * PAPER["parameters"] * checked / ACCELERATOR_FLOPS,
        "proofs (one core)": chunk * checked / codec.CHUNK_TOKENS,
        "redraw, sampling, ends (one core)": some * checked,
    }
    return {
        "assumed": PAPER | {"accelerator_flops": ACCELERATOR_FLOPS},
        "seconds": terms,
        "seconds_in_all": sum(terms.values()),
        "arithmetic": [
            f"{every * 1e6:.1f} us a token x {all_tokens:.0f} tokens",
            f"2 x {PAPER['parameters']:.0f} parameters x {checked:.0f} tokens / {ACCELERATOR_FLOPS:.0f} FLOP/s",
            f"{chunk * 1e6:.0f} us a chunk of {PAPER['hidden_size']} wide states x {checked / codec.CHUNK_TOKENS:.0f} chunks",
            f"{some * 1e6:.1f} us a token x {checked:.0f} tokens",
        ],
    }


def _compare_seconds(hidden_size: int) -> float:
    """Seconds to compare the proof of one chunk with states of this width, from a batch of them."""
    states = np.random.default_rng(0).standard_normal((SAMPLE_CHUNKS * codec.CHUNK_TOKENS, hidden_size), np.float32)
    proofs = codec.parse(codec.encode(states), len(states), hidden_size)
    started = time.process_time()
    codec.compare(proofs, states)
    return (time.process_time() - started) / SAMPLE_CHUNKS
