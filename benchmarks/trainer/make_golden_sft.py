"""Golden values of supervised fine-tuning by TRL 1.16.0: `make golden` writes tests/training/golden/trl_sft.json.

In: the model and batch of `golden_model`. Out: the loss and gradients that TRL's own `SFTTrainer.compute_loss` gives for them, padded and labelled by
its own collator. Runs in the oracle's environment: `$(tools/oracle.sh) -m benchmarks.trainer.make_golden_sft`.
"""

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from benchmarks.trainer.trl_side import small_tokenizer

TESTS = Path(__file__).resolve().parents[2] / "tests" / "training"
sys.path.insert(0, str(TESTS))  # the tests' helper modules are imported by their bare names
import golden_model

TARGET = TESTS / "golden" / "trl_sft.json"
SHOWN_ENTRIES = 24


def main() -> None:
    torch.set_num_threads(1)
    model = golden_model.golden_model()
    prompts, completions = golden_model.prompts(), golden_model.completions()
    rows = [
        {"input_ids": prompt + completion, "completion_mask": [0] * len(prompt) + [1] * len(completion)}
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    arguments = SFTConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-"),
        per_device_train_batch_size=len(rows),
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        completion_only_loss=True,
        packing=False,
    )
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=small_tokenizer(model.config.vocab_size),
    )
    trainer.model.train()
    tokens = sum(map(len, completions))
    prepared = trainer.train_dataset
    batch = trainer.data_collator([prepared[index] for index in range(len(prepared))])
    assert int((batch["labels"] != -100).sum()) == tokens, "TRL learns other tokens than the completions"
    loss = trainer.compute_loss(trainer.model, batch, num_items_in_batch=torch.tensor(tokens))
    loss.backward()
    found = {
        "made_by": {name: version(name).split("+")[0] for name in ("trl", "torch", "transformers")},
        "tokens": tokens,
        "loss": float(loss.detach()),
        "gradients": {
            name: {
                "sum_of_squares": float(parameter.grad.double().square().sum()),
                "first": parameter.grad.flatten()[:SHOWN_ENTRIES].tolist(),
            }
            for name, parameter in sorted(trainer.model.named_parameters())
        },
    }
    TARGET.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    print(f"written to {TARGET}")


if __name__ == "__main__":
    main()
