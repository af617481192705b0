"""One engine on one made-up model: tokens per second with and without proofs, round by round, and seconds of a swap.

    python -m benchmarks.inference.engine SHAPE FOLDER RESULT.json

Rounds with and without proofs alternate in one process, on the same engine, and each round with is compared with the one without beside it: what else
the machine does then tells the least. CPU seconds are those of all threads. `alone` is the cost of proofs by themselves: the states of as many
tokens recorded and proved with no engine around. Prints nothing. Started by `__main__` for each shape.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shoal.inference.engine import Engine  # sets what torch and vLLM read when they are loaded

import torch  # isort: skip
from tokenizers import Tokenizer  # isort: skip
from tokenizers.models import WordLevel  # isort: skip
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM  # isort: skip

from shoal.inference.checkpoint import read_checkpoint
from shoal.inference.completions import Completion, Request
from shoal.inference.proofs import ProofRecorder


@dataclass(frozen=True)
class Shape:
    """A model and a load. All completions have `tokens` tokens: none ends by itself."""

    hidden_size: int
    layers: int
    head_size: int
    vocabulary: int
    sequences: int
    tokens: int
    rounds: int


SHAPES = {
    "demo": Shape(hidden_size=128, layers=3, head_size=32, vocabulary=258, sequences=48, tokens=192, rounds=12),
    "wide": Shape(hidden_size=1024, layers=8, head_size=64, vocabulary=4096, sequences=24, tokens=64, rounds=14),
}
"""The model of `examples/arithmetic` with the rows of one of its files, decoded for longer than its task takes; and one
with layers of a size at which Python's share of a step is small, as it is on every model that is worth the name.
"""
PROMPT_TOKENS = 16
SWAPS = 6


def make_checkpoint(folder: Path, shape: Shape, seed: int) -> None:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden_size,
        intermediate_size=2 * shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden_size // shape.head_size,
        num_key_value_heads=max(1, shape.hidden_size // shape.head_size // 2),
        head_dim=shape.head_size,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    Qwen3ForCausalLM(config).float().save_pretrained(folder)
    # vLLM stops at end tokens of tokenizer and configuration; this one is beyond the model's vocabulary and never drawn.
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": shape.vocabulary}))
    words = Tokenizer(WordLevel({"<end>": shape.vocabulary}))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(folder)  # noqa: S106 no password


@dataclass(frozen=True)
class Round:
    """One batch of completions."""

    proofs: bool
    tokens: int
    seconds: float
    cpu_seconds: float


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result, wall seconds and CPU seconds of all threads."""
    began, cpu = time.perf_counter(), time.process_time()
    made = work()
    return made, time.perf_counter() - began, time.process_time() - cpu


def one_round(engine: Engine, shape: Shape, number: int, proofs: bool) -> Round:
    engine.record_proofs(proofs)
    requests = [
        Request((*range(2, PROMPT_TOKENS + 1), 2 + row), 1000 * number + row, 1.0, shape.tokens)
        for row in range(shape.sequences)
    ]
    made, seconds, cpu = timed(lambda: engine.generate(requests, lambda: None))
    check(made, proofs)
    return Round(proofs, sum(len(completion.tokens) for completion in made), seconds, cpu)


def check(completions: Sequence[Completion], proofs: bool) -> None:
    """Without this a round that made nothing would be the fastest."""
    found = {(bool(completion.proofs), completion.finish_reason) for completion in completions}
    if found != {(proofs, "length")}:
        raise RuntimeError(f"completions should {'have' if proofs else 'lack'} proofs and go on to the limit: {found}")


def alone(shape: Shape) -> float:
    """CPU seconds a token of recording and proving."""
    recorder, states = ProofRecorder(), torch.randn(shape.sequences, shape.hidden_size)
    names = [f"{row:016x}" for row in range(shape.sequences)]

    def work() -> None:
        for _ in range(shape.tokens):
            recorder.add(names, states)
        recorder.finish(dict.fromkeys(names, shape.tokens))
        recorder.take(names)

    work()
    return min(timed(work)[2] for _ in range(5)) / (shape.sequences * shape.tokens)


def main(name: str, folder: Path, result: Path) -> None:
    shape = SHAPES[name]
    versions = [folder / f"v{number}" for number in range(2)]
    for seed, version in enumerate(versions):
        make_checkpoint(version, shape, seed)
    length = PROMPT_TOKENS + shape.tokens
    endless = replace(read_checkpoint(versions[0]), eos_token_ids=frozenset())
    engine = Engine(endless, max_sequence_length=length, batch=shape.sequences)
    one_round(engine, shape, 0, proofs=True)  # what is set up at the first use is not a round's
    pairs = []
    for number in range(1, shape.rounds + 1):
        order = (True, False) if number % 2 else (False, True)
        done = {proofs: one_round(engine, shape, number, proofs) for proofs in order}
        pairs.append({"with": asdict(done[True]), "without": asdict(done[False])})
    swaps = []
    for version in (versions[1], versions[0]) * (SWAPS // 2):
        began = time.perf_counter()
        engine.swap(read_checkpoint(version))
        swaps.append(time.perf_counter() - began)
    engine.close()
    measured = {"shape": asdict(shape), "pairs": pairs, "swaps": swaps, "alone_cpu_seconds_a_token": alone(shape)}
    result.write_text(json.dumps(measured))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
