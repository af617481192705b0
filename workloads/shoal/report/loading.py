"""How to load the trained model: commands to copy, for transformers and for vLLM. Pure; printed by `shoal up` and `shoal report`.

The commands are run by tests as they are printed. vLLM's arguments are those that its CPU build needs (one thread, eager, no chunked prefill).
"""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LoadCommand:
    """A title and a shell command."""

    title: str
    text: str


TRANSFORMERS = """
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = {folder}
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
inputs = tokenizer({prompt}, return_tensors="pt", return_token_type_ids=False, add_special_tokens=False)
print(tokenizer.decode(model.generate(**inputs, max_new_tokens={tokens})[0]))
""".strip()

VLLM = """
from vllm import LLM, SamplingParams
llm = LLM({folder}, dtype="auto", enforce_eager=True, kv_cache_memory_bytes=128 << 20,
          enable_chunked_prefill=False, max_num_batched_tokens=2048, max_model_len={context})
prompt = {{"prompt_token_ids": llm.get_tokenizer().encode({prompt}, add_special_tokens=False)}}
print(llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens={tokens}))[0].outputs[0].text)
""".strip()

VLLM_ENVIRONMENT = "OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0"
MOST_TOKENS = 64


def load_commands(folder: Path, prompt: str, context_tokens: int) -> list[LoadCommand]:
    """Commands that load the model in `folder` and continue `prompt`; `context_tokens` is the run's longest sequence."""
    values = {
        "folder": json.dumps(str(folder)),  # a JSON string is a Python string, in the quotes that a shell leaves alone
        "prompt": json.dumps(prompt),
        "tokens": min(MOST_TOKENS, context_tokens),
        "context": context_tokens,
    }
    return [
        LoadCommand("With transformers:", _command("", TRANSFORMERS.format(**values))),
        LoadCommand("With vLLM:", _command(VLLM_ENVIRONMENT + " ", VLLM.format(**values))),
    ]


def _command(environment: str, program: str) -> str:
    return f"{environment}python -c {shlex.quote(program)}"
