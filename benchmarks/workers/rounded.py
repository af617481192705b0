"""How far rounded weights (ADR 0116) are from the published ones on a trained model in bfloat16: `rounded_weights`.

In: SmolLM2-135M-Instruct, and additions as its chats. Out: over tokens that the rounded weights drew by the run's own rule, the mean divergence
from the published ones in nats, and the share that these would draw otherwise with the same seeds. Transformers draws here, in place of vLLM.
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
    kl, otherwise, largest = [], 0, 0.0
    for number, prompt in enumerate(prompts):
        seed = 1_000 + number
        answer, drawn = _drawn(sampler, prompt, seed, tokenizer.eos_token_id)
        with torch.inference_mode():
            logits = published(input_ids=torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1].float()
        sampled, trained = (torch.log_softmax(each, dim=-1) for each in (drawn, logits))
        kl += (sampled.exp() * (sampled - trained)).sum(dim=-1).tolist()
        places = torch.arange(len(answer))
        apart = (sampled - trained)[places, torch.tensor(answer)].abs()
        largest = max(largest, float(apart.max()))
        theirs = gumbel.draw(logits, torch.full((len(answer),), seed), places + len(prompt) - 1)
        otherwise += int((theirs != torch.tensor(answer)).sum())
    return {
        "model": MODEL,
        "tokens": len(kl),
        "mean_kl_nats_a_token": sum(kl) / len(kl),
        "largest_kl_nats": max(kl),
        "largest_logprob_difference": largest,
        "drawn_otherwise_share": otherwise / len(kl),
    }


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
