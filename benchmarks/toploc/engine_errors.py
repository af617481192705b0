"""How far honest proofs of a real vLLM engine are from a validator's states: `python -m benchmarks.toploc.engine_errors MODEL [--sequences N]`.

The checkpoint is served in float32 and in bfloat16, each by an engine in a process of its own, in batches; every completion is computed again by one
pass in transformers, alone. Prints one line a type of serving, and with `--plot FILE` draws the distributions. For docs/proofs.md.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")

DTYPES = ("float32", "bfloat16")
MAX_LENGTH = 64


def serve(folder: Path, prompts: Path, output: Path) -> None:
    """In the engine's process: complete all prompts and write tokens and proofs."""
    from shoal.inference.checkpoint import read_checkpoint
    from shoal.inference.completions import Request
    from shoal.inference.engine import Engine

    wanted = json.loads(prompts.read_text())
    engine = Engine(read_checkpoint(folder), max_sequence_length=MAX_LENGTH, batch=48)
    requests = [Request(prompt, seed, 1.0, MAX_LENGTH - len(prompt)) for seed, prompt in enumerate(wanted)]
    made = engine.generate(requests, lambda: None)
    output.write_text(json.dumps([[each.tokens, each.proofs.hex()] for each in made]))


def errors(model: Path, dtype: str, sequences: int, scratch: Path) -> Any:
    """`codec.ErrorTable` over all chunks of `sequences` completions that vLLM served in `dtype`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from shoal import environments
    from shoal.environments.prompts import prompt_tokens
    from shoal.proofs.forward import Decoded, prefill
    from shoal.toploc import codec

    torch.set_num_threads(1)
    tokenizer, environment = AutoTokenizer.from_pretrained(model), environments.load("arithmetic")
    tasks = environment.tasks(sequences, 3)
    prompts = [
        prompt_tokens(tokenizer, environment, task, (20, 24, 28)[number % 3], None) for number, task in enumerate(tasks)
    ]
    folder = scratch / dtype
    shutil.copytree(model, folder)
    policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    policy.save_pretrained(folder)
    (folder / "prompts.json").write_text(json.dumps(prompts))
    output = scratch / f"{dtype}.json"
    command = [sys.executable, "-m", __spec__.name, "--serve", str(folder), str(folder / "prompts.json"), str(output)]
    subprocess.run(command, check=True, timeout=900)
    made = json.loads(output.read_text())
    rows = [
        Decoded(prompt, tokens, np.zeros((0, 0), dtype=np.float32))
        for prompt, (tokens, _) in zip(prompts, made, strict=True)
    ]
    width = policy.config.hidden_size
    tables = [
        codec.error_table(codec.parse(bytes.fromhex(proofs), len(tokens), width), states)
        for states, (tokens, proofs) in zip(prefill(policy, rows, 1), made, strict=True)
    ]
    columns = ("exponent_mismatches", "sign_mismatches", "mantissa_error_mean", "mantissa_error_median")
    return codec.ErrorTable(*(np.concatenate([getattr(table, name) for table in tables]) for name in columns))


def plot(tables: dict[str, Any], path: Path) -> None:
    """Histograms of mismatches and of mean mantissa errors, a row for each type of serving."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(tables), 2, figsize=(9, 2.6 * len(tables)), layout="constrained", squeeze=False)
    for row, (dtype, table) in zip(axes, tables.items(), strict=True):
        mismatches = table.exponent_mismatches + table.sign_mismatches
        row[0].hist(mismatches, bins=np.arange(-0.5, max(8, mismatches.max()) + 1.5), color="#4477aa")
        row[0].set(xlabel="exponents and signs that differ, of 128", ylabel="chunks", title=dtype)
        row[1].hist(table.mantissa_error_mean, bins=40, color="#66aa77")
        row[1].set(xlabel="mean mantissa error (units of 7 bits)", title=f"{dtype}, {len(table)} chunks")
        for axis in row:
            axis.set_yscale("log")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--serve", nargs=3, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve(*given.serve)
    if given.model is None:
        parser.error("MODEL is missing: a folder with a checkpoint of the arithmetic environment")
    tables: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for dtype in DTYPES:
            table = tables[dtype] = errors(given.model, dtype, given.sequences, Path(scratch))
            mismatches = table.exponent_mismatches + table.sign_mismatches
            print(
                f"{dtype}: {len(table)} chunks; mismatches 99 % {np.quantile(mismatches, 0.99):.0f}, most {mismatches.max()}; mantissa error mean"
                f" 99 % {np.quantile(table.mantissa_error_mean, 0.99):.3f}, most {table.mantissa_error_mean.max():.3f};"
                f" median, most {table.mantissa_error_median.max():.1f}",
                flush=True,
            )
    if given.plot is not None:
        plot(tables, given.plot)


if __name__ == "__main__":
    main()
