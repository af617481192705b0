"""What both trainers are given: a model of random weights in a checkpoint folder, and one optimizer batch of fixed tokens.

In: a shape. Out: a folder with the checkpoint and `batch.json`. Lengths are drawn so that about 40 % of a padded batch is real, as with the
completions of a reasoning model: a few near the limit, most far from it. Runs in both environments; called by `measure` and `accelerator`.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

EPSILON, DELTA, KL, ENTROPY = 0.2, 4.0, 0.001, 1e-4
"""The run's own recipe (paper section 4.1)."""
REAL_SHARE = 0.4
FURTHEST_RATIO = 1.5
"""Log-probabilities of the old policy differ by at most so much, so that every branch of the clip is taken."""


@dataclass(frozen=True)
class Shape:
    """A Qwen3 and a batch. `pack_length` is ours; TRL pads to the longest prompt and completion.

    With `experts` every layer has that many of width `intermediate`, of which a token takes `chosen`. The auxiliary loss that TRL adds for such
    models by itself is off: the objective is the recipe's.
    """

    name: str
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    rows: int
    prompt: int
    longest: int
    pack_length: int
    tied: bool = False
    experts: int = 0
    chosen: int = 0

    def config(self) -> Qwen3Config | Qwen3MoeConfig:
        mixture = {
            "num_experts": self.experts, "num_experts_per_tok": self.chosen, "moe_intermediate_size": self.intermediate,
            "norm_topk_prob": True, "router_aux_loss_coef": 0.0,
        }  # fmt: skip
        kind, more = (Qwen3MoeConfig, mixture) if self.experts else (Qwen3Config, {})
        return kind(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_heads,
            head_dim=self.hidden // self.heads,
            max_position_embeddings=max(32_768, self.prompt + self.longest),
            tie_word_embeddings=self.tied,
            eos_token_id=1,
            bos_token_id=None,
            pad_token_id=0,
            dtype="float32",
            **more,
        )


CPU = Shape("cpu", 32_768, 256, 768, 4, 4, 2, rows=24, prompt=64, longest=512, pack_length=2048)
"""20 million parameters, 24 completions of up to 512 tokens: what two cores and a few gigabytes can do in seconds."""
EXPERTS = Shape(
    "experts", 8192, 256, 256, 4, 4, 2, rows=24, prompt=64, longest=512, pack_length=2048, experts=32, chosen=4
)  # fmt: skip
"""30 million parameters, 25 of them in experts, of which a token uses an eighth, as of Qwen3-30B-A3B a sixteenth."""
QUICK = Shape("quick", 512, 64, 128, 2, 2, 1, rows=8, prompt=8, longest=48, pack_length=128)
"""For the tests."""


@dataclass(frozen=True)
class Batch:
    """Token ids and, for each completion token, log-probabilities of old policy and reference."""

    prompts: list[list[int]]
    completions: list[list[int]]
    advantages: list[float]
    old: list[list[float]]
    reference: list[list[float]]

    @property
    def tokens(self) -> int:
        """Completion tokens: the loss's divisor."""
        return sum(map(len, self.completions))

    @property
    def real_share(self) -> float:
        """Real tokens of the padded batch."""
        width = max(map(len, self.prompts)) + max(map(len, self.completions))
        return (sum(map(len, self.prompts)) + self.tokens) / (width * len(self.prompts))


def make_checkpoint(shape: Shape, folder: Path) -> None:
    """Random weights in the Hugging Face layout, float32."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(shape.config()).float().save_pretrained(folder)


def draw_batch(shape: Shape, seed: int = 0) -> Batch:
    """Tokens and advantages; log-probabilities of the other policies are near those of random weights, -log(vocabulary).

    One row has the full length, since that is what a batch is padded to; the others share what is left, unevenly.
    """
    chance = np.random.default_rng(seed)
    prompt_lengths = chance.integers(shape.prompt // 2, shape.prompt + 1, shape.rows)
    wanted = REAL_SHARE * (shape.prompt + shape.longest) * shape.rows - prompt_lengths.sum() - shape.longest
    shares = chance.gamma(1.5, size=shape.rows - 1)
    lengths = np.clip(shares / shares.sum() * wanted, 2, shape.longest).astype(int).tolist()
    lengths.insert(shape.rows // 2, shape.longest)
    completions = [chance.integers(2, shape.vocabulary, length).tolist() for length in lengths]
    usual = -float(np.log(shape.vocabulary))

    def other() -> list[list[float]]:
        return [(usual + chance.uniform(-FURTHEST_RATIO, FURTHEST_RATIO, length)).tolist() for length in lengths]

    return Batch(
        prompts=[chance.integers(2, shape.vocabulary, length).tolist() for length in prompt_lengths],
        completions=completions,
        advantages=chance.normal(size=shape.rows).tolist(),
        old=other(),
        reference=other(),
    )


def write_workload(shape: Shape, folder: Path, seed: int = 0) -> Batch:
    """The checkpoint under `folder/model`, the batch as `folder/batch.json`, the shape as `folder/shape.json`."""
    make_checkpoint(shape, folder / "model")
    batch = draw_batch(shape, seed)
    (folder / "batch.json").write_text(json.dumps(asdict(batch)))
    (folder / "shape.json").write_text(json.dumps(asdict(shape)))
    return batch


def read_workload(folder: Path) -> tuple[Shape, Batch]:
    """What `write_workload` wrote."""
    return Shape(**json.loads((folder / "shape.json").read_text())), Batch(
        **json.loads((folder / "batch.json").read_text())
    )
