"""How many forward passes a trained token costs: matrix products of the decoder's layers, counted while the real `Trainer` makes a step.

    python -m benchmarks.trainer.passes

In: nothing. Out (printed): JSON, by recipe, the multiply-adds of the layers over those of one forward pass of the step's tokens. A backward pass
counts for two. Activations are computed again, as at any size worth training. Torch stops that before a layer's last product, whose result no
gradient needs, so a measured figure is a little below the whole number. The head is no layer, and left out: the vocabulary tells its products.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY, WIDTH, LAYERS = 97, 32, 2
"""The vocabulary is no width of a layer and no count of tokens."""
LOOPBACK = "127.16.0.2"
RECIPES: dict[str, dict[str, Any]] = {
    "KL 0, one optimizer step": {"kl_coefficient": 0.0, "optimizer_steps": 1},
    "KL 0, one optimizer step, engines' probabilities": {
        "kl_coefficient": 0.0, "optimizer_steps": 1, "mismatch_correction": {"truncate": {}, "sequence": {}},
    },
    "KL 0, one optimizer step, recomputed probabilities": {
        "kl_coefficient": 0.0, "optimizer_steps": 1, "mismatch_correction": {"truncate": {}, "probabilities": "Recomputed"},
    },
    "the paper's: KL, eight optimizer steps": {"optimizer_steps": 8},
    "PRIME, KL 0, one optimizer step": {"algorithm": {"prime": {}}, "kl_coefficient": 0.0, "optimizer_steps": 1},
}  # fmt: skip
"""Four units each for the first two; one more for a pass with the weights that sampled; 5.875 for the paper's. PRIME's ten: the policy's four, one of
the base model, and the reward model's five."""


class LayerProducts(TorchDispatchMode):
    """Counts multiply-adds of matrix products that are not the head's, on this thread: on a CPU the backward pass runs there too."""

    def __init__(self) -> None:
        super().__init__()
        self.multiply_adds = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            left, right = args[-2:]
            if VOCABULARY not in (*left.shape, *right.shape):
                self.multiply_adds += left.shape[0] * left.shape[1] * right.shape[1]
        return func(*args, **(kwargs or {}))


def by_recipe() -> dict[str, float]:
    """Forward passes a token, by the recipe's name."""
    with tempfile.TemporaryDirectory(prefix="passes-") as folder:
        return {
            name: _counted(Path(folder) / str(number), given) for number, (name, given) in enumerate(RECIPES.items())
        }


def _counted(folder: Path, changes: dict[str, Any]) -> float:
    sys.path[:0] = [each for each in (str(ROOT / "tests"), str(ROOT / "tests" / "training")) if each not in sys.path]
    import tiny_run

    from shoal.contracts import keys
    from shoal.contracts.trainer import TrainerSettings
    from shoal.training.extensions.base import Extension, Extensions
    from shoal.training.extensions.enabled import recipe_extensions

    base = tiny_run.write_base(folder / "base", vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS)
    store = tiny_run.make_store(folder / "store")
    rows = tiny_run.rows_of(0, groups=8)
    store.put(keys.step_batch(0), tiny_run.batch_of(0, [tiny_run.accept(store, rows)]).to_json())
    orchestrator = tiny_run.Orchestrator(LOOPBACK)
    orchestrator.latest_version = 1
    run = tiny_run.config(
        orchestrator.url,
        1,
        recipe=tiny_run.recipe(**({"prompts_per_step": 8, "pack_length": 64} | changes)),
        trainer=TrainerSettings(activation_recomputation="On"),
    )
    counter = LayerProducts()

    class Count(Extension):
        """Counts from the beginning of the step to its end."""

        def before_step(self, step: int) -> None:
            counter.__enter__()

        def after_updates(self, step: int) -> None:
            counter.__exit__(None, None, None)

    try:
        extensions = Extensions(*recipe_extensions(run.recipe), Count())
        tiny_run.make_trainer(folder, base, store, orchestrator, run, extensions).run()
    finally:
        orchestrator.close()
    tokens = sum(len(row.prompt_tokens) + len(row.completion_tokens) for row in rows)
    layers = tiny_run.make_model(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS).model.layers
    once = tokens * sum(weight.numel() for weight in layers.parameters() if weight.dim() == 2)
    return float(counter.multiply_adds / once)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(json.dumps(by_recipe()))
