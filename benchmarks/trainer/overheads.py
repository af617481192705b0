"""What saving and publishing cost a step: the real `Trainer` on a real folder store, with a model and a batch that make both worth measuring.

    python -m benchmarks.trainer.overheads [quick]

In: nothing. Out (printed): JSON with the share of a step that the main thread is held up, and of all time that it computes nothing while every batch
lies ready: waiting, reading rows, copying weights, and whatever is between steps. The tests' tiny run gives the store, signed verdicts and an
orchestrator; the publisher runs beside it in a process of its own in a real pod, so its work is in nobody's step. Called by `__main__`.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STEPS = 4
FIRST_MEASURED_STEP = 2
"""The buffers of the copy are made in the first step, and the delivery of version 0 is in its way."""
LOOPBACK = "127.16.0.1"
COMPUTING = ("old_logprobs", "reference_logprobs", "behaviour_logprobs", "update")
"""Phases of a step in which the model computes."""


def main(quick: bool) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "training")]
    with tempfile.TemporaryDirectory(prefix="overheads-") as folder:
        print(json.dumps(_measure(Path(folder), quick)))


def _measure(folder: Path, quick: bool) -> dict[str, Any]:
    import tiny_run

    from shoal.contracts import keys
    from shoal.contracts.steps import StepMetrics
    from shoal.training.extensions.base import Extension, Extensions
    from shoal.training.handover import BLOCKED_SECONDS

    steps = 3 if quick else STEPS
    # Both copying and computing grow with the weights: what sets their proportion is the number of tokens in a step, 25,000 here. In the
    # paper's run it is a thousand times that.
    width, vocabulary, groups, longest = (32, 64, 2, 24) if quick else (128, 8192, 12, 512)
    base = tiny_run.write_base(
        folder / "base", vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=1024, initializer_range=0.02,
    )  # fmt: skip
    store = tiny_run.make_store(folder / "store")
    for step in range(steps):
        rows = _rows(step, groups, vocabulary, longest)
        batch = tiny_run.batch_of(step, [tiny_run.accept(store, rows)])
        store.put(keys.step_batch(step), batch.to_json())
    orchestrator = tiny_run.Orchestrator(LOOPBACK)
    orchestrator.latest_version = steps
    recipe = tiny_run.recipe(
        prompts_per_step=groups, group_size=8, optimizer_steps=4, max_sequence_length=1024, pack_length=2048
    )
    blocked: list[float] = []

    class Watch(Extension):
        """Notes after each step for how long it was held up by the delivery before it."""

        def after_step(self, version: int) -> int:
            blocked.append(float(BLOCKED_SECONDS._value.get()))
            return version

    try:
        run = tiny_run.config(orchestrator.url, steps, recipe=recipe)
        tiny_run.make_trainer(folder, base, store, orchestrator, run, Extensions(Watch())).run()
    finally:
        orchestrator.close()
    reports = [StepMetrics.from_json(store.get(keys.step_metrics(step))) for step in range(steps)]
    measured = reports[FIRST_MEASURED_STEP:]
    seconds = [report.finished_unix - report.started_unix for report in measured]
    # Waiting for the version before may be for its state or for its publishing: it is counted in both.
    save = [report.phase_seconds["save"] for report in measured]
    waited = blocked[FIRST_MEASURED_STEP:]
    whole = measured[-1].finished_unix - measured[0].started_unix  # with what is between two steps
    computed = sum(report.phase_seconds.get(name, 0.0) for report in measured for name in COMPUTING)
    weights = sum(path.stat().st_size for path in (folder / "outbox").glob("v*1/*.safetensors"))
    return {
        "publish_overhead": sum(waited) / sum(seconds),
        "checkpoint_overhead": sum(save) / sum(seconds),
        "idle_share_batch_ready": 1 - computed / whole,
        "step_seconds": mean(seconds),
        "state_bytes": sum(info.size for info in store.list(keys.trainer_state(steps))),
        "published_bytes": weights,
        "phase_seconds": {
            name: mean(one.phase_seconds.get(name, 0.0) for one in measured) for name in measured[0].phase_seconds
        },
    }


def _rows(step: int, groups: int, vocabulary: int, longest: int) -> list[Any]:
    """Groups of eight random completions, every length up to the longest."""
    import numpy as np

    from samples import rollout

    chance = np.random.default_rng([11, step])
    rows = []
    for group in range(groups):
        prompt = chance.integers(2, vocabulary, 16).tolist()
        for index in range(8):
            count = int(chance.integers(8, longest + 1))
            rows.append(
                rollout(
                    step=step,
                    policy_version=max(0, step - 1),
                    prompt_index=10 + group,
                    sample_index=index,
                    prompt_tokens=prompt,
                    completion_tokens=chance.integers(2, vocabulary, count).tolist(),
                    completion_logprobs=[-1.0] * count,
                    completion_mask=[True] * count,
                    temperature=1.0,
                    target_length=16,
                )
            )
    return rows


if __name__ == "__main__":
    main("quick" in sys.argv[1:])
