"""How far rounded weights (ADR 0116) are from the published ones on a trained model in bfloat16: `rounded_weights`.

In: SmolLM2-135M-Instruct, and additions as its chats. Out: over tokens that the rounded weights drew by the run's own rule, the mean divergence
from the published ones in nats, and the share that these would draw otherwise with the same seeds. Both weights read the whole row in one pass, so
only their rounding differs. Beside it stands the noise of bfloat16: the same for one and the same rounded weights, which draw a token at a time and
then read the row in one pass. Transformers draws here, in place of vLLM.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, DynamicCache

from shoal.environments.arithmetic import Arithmetic
from shoal.sampling import gumbel
from shoal.validation.models import load_model

MODEL = "SmolLM2-135M-Instruct, bfloat16"
ROWS, TOKENS = 24, 48


def rounded_weights() -> dict[str, Any]:
    """A minute of a core; fetches the model once."""
    sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
    from fetch_smollm2 import fetched

    torch.set_num_threads(1)
    folder = fetched()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [_prompt(tokenizer, str(task.prompt)) for task in Arithmetic().tasks(ROWS, seed=5)]
    sampler, published = load_model(folder, quantization="fp8"), load_model(folder)
    rounding, noise = _Apart(), _Apart()
    for number, prompt in enumerate(prompts):
        seed = 1_000 + number
        answer, drawn = _drawn(sampler, prompt, seed, tokenizer.eos_token_id)
        ours, theirs = (_read(model, prompt, answer) for model in (sampler, published))
        rounding.add(ours, theirs, answer, seed, len(prompt))
        noise.add(drawn, ours, answer, seed, len(prompt))
    return {"model": MODEL, **rounding.figures(), "decoding_noise": noise.figures()}


class _Apart:
    """How far two distributions are from each other, over the tokens of all rows."""

    def __init__(self) -> None:
        self._kl = list[float]()
        self._otherwise, self._largest = 0, 0.0

    def add(self, ours: torch.Tensor, theirs: torch.Tensor, answer: list[int], seed: int, prompt_length: int) -> None:
        """`ours`, `theirs`: logits of one row's tokens, float32 [tokens, vocabulary]."""
        sampled, other = (torch.log_softmax(each, dim=-1) for each in (ours, theirs))
        self._kl += (sampled.exp() * (sampled - other)).sum(dim=-1).tolist()
        places = torch.arange(len(answer))
        self._largest = max(self._largest, float((sampled - other)[places, torch.tensor(answer)].abs().max()))
        seeds = torch.full((len(answer),), seed)
        first, second = (gumbel.draw(each, seeds, places + prompt_length - 1) for each in (ours, theirs))
        self._otherwise += int((first != second).sum())

    def figures(self) -> dict[str, Any]:
        return {
            "tokens": len(self._kl),
            "mean_kl_nats_a_token": sum(self._kl) / len(self._kl),
            "largest_kl_nats": max(self._kl),
            "largest_logprob_difference": self._largest,
            "drawn_otherwise_share": self._otherwise / len(self._kl),
        }


@torch.inference_mode()
def _read(model: Any, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """Logits of the answer's tokens in one pass over the whole row, float32 [tokens, vocabulary]."""
    logits: torch.Tensor = model(input_ids=torch.tensor([[*prompt, *answer]])).logits
    return logits[0, len(prompt) - 1 : -1].float()


def _prompt(tokenizer: Any, question: str) -> list[int]:
    message = [{"role": "user", "content": f"What is {question.rstrip('=')}? Explain."}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))


@torch.inference_mode()
def _drawn(model: Any, prompt: list[int], seed: int, end: int) -> tuple[list[int], torch.Tensor]:
    """A row that the run's rule draws at temperature 1, and its logits, float32 [tokens, vocabulary]."""
    cache, tokens, seen = DynamicCache(config=model.config), list[int](), []
    given = torch.tensor([prompt])
    while len(tokens) < TOKENS and (not tokens or tokens[-1] != end):
        logits = model(input_ids=given, past_key_values=cache, use_cache=True).logits[:, -1].float()
        position = torch.tensor([len(prompt) + len(tokens) - 1])
        tokens.append(int(gumbel.draw(logits, torch.tensor([seed]), position)))
        seen.append(logits[0])
        given = torch.tensor([tokens[-1:]])
    return tokens, torch.stack(seen)
