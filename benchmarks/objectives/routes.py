"""Figures of router replay for `benchmarks.objectives`: how often an engine in bfloat16 and the trainer in float32 choose other experts.

In: a random qwen3_moe (6 layers, 4 of 32 experts) that a real engine samples from, as a worker does. Out: `router_replay_mismatch`, the share of
(sampled token, layer) pairs whose experts differ; the mean and greatest distance of log-probabilities from the engine's, with the trainer's own
routes and with the recorded ones; how far the routes are behind a validator's own (`checks.routes`); and bytes a token in a file of rollouts, of this
model and of routes by chance of a model like Qwen3-30B-A3B. Some two minutes.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LAYERS, CHOICES, EXPERTS = 6, 4, 32
LARGE_TOKENS = 2048
"""Of a row of the large model: 0.8 MB of routes."""


def replayed() -> dict[str, Any]:
    """The figures, measured."""
    sys.path[:0] = [str(ROOT / "tests" / "inference"), str(ROOT / "tests")]  # helpers are imported by their bare names
    import tiny_policy
    import torch
    from expert_policy import make_expert_policy, softmax_config
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_expert_policy(folder, softmax_config(EXPERTS, CHOICES, LAYERS), 0, torch.bfloat16)
        planned = tiny_policy.plan(AutoTokenizer.from_pretrained(folder))
        requests = [tiny_policy.request_json(row.request) for row in planned]
        commands = [{"do": "start", "folder": str(folder), "routes": True}, {"do": "generate", "requests": requests}]
        return figures(folder, planned, tiny_policy.run_engine(commands).results[1])


def figures(folder: Path, planned: Any, made: Any) -> dict[str, Any]:
    """Of what an engine made of `planned` with the checkpoint in `folder`."""
    import numpy as np
    import tiny_policy

    from shoal.contracts.rollouts import RolloutMetadata, write_rollouts
    from shoal.contracts.routes import RouteShape, route_shape
    from shoal.inference.rollouts import assemble
    from shoal.models.routes import decode, encode
    from shoal.training.batches import micro_batch
    from shoal.training.model import load_policy
    from shoal.training.rollouts import Sample
    from shoal.training.update import router_mismatch
    from shoal.validation.models import load_model
    from shoal.validation.prefill import prefill_rows

    metadata = RolloutMetadata("m", "0" * 64, "0" * 64, "0")
    shape = route_shape(json.loads((folder / "config.json").read_text()))
    public = tiny_policy.PUBLIC.model_copy(update={"routes": shape})
    rows = assemble(planned, made, tiny_policy.LEASE, public, 0, lambda task, tokens, mask: 0.0)
    samples = [
        Sample(
            row.problem_id, np.array([*row.prompt_tokens, *row.completion_tokens]), len(row.prompt_tokens),
            np.array(row.completion_mask), np.array(row.completion_logprobs, dtype=np.float32), row.temperature, 0, 1.0, 0.0, 1.0,
            routes=decode(row.routes or b"", len(row.completion_tokens), shape),
        )
        for row in rows
    ]  # fmt: skip
    pack = micro_batch([(sample, 1.0) for sample in samples])
    gaps = {}
    for name, follows in (("own_routes", False), ("recorded_routes", True)):
        policy = load_policy(folder)
        policy.record_routes(shape, follows=follows)
        _, logprobs, _ = policy(pack, lambda here, logprobs, entropy: -logprobs.sum())
        far = (logprobs.detach() - pack.worker_logprobs).abs()
        gaps[name] = {"mean": float(far.mean()), "largest": float(far.max()), "mismatch": router_mismatch(policy)}
    model = load_model(folder)
    looks = prefill_rows(model, dict(enumerate(rows)), frozenset({tiny_policy.EOS}), routes=shape)
    behind = [ours.routes for batch in looks for ours in batch.values() if ours.routes is not None]
    plain = [replace(row, routes=None) for row in rows]
    tokens = sum(len(row.completion_tokens) for row in rows)
    with_and_without = [len(write_rollouts(each, metadata)) for each in (rows, plain)]
    large = RouteShape(layers=48, choices=8, experts=128)
    chosen = np.random.default_rng(0).random((LARGE_TOKENS, 48, 128)).argpartition(8, axis=-1)[..., :8]
    row = replace(
        rows[0],
        completion_tokens=[5] * LARGE_TOKENS, completion_logprobs=[0.0] * LARGE_TOKENS, completion_mask=[True] * LARGE_TOKENS,
        routes=encode(chosen, large),
    )  # fmt: skip
    of_large = [len(write_rollouts([each], metadata)) for each in (row, replace(row, routes=None))]
    return {
        "router_replay_mismatch": gaps["own_routes"]["mismatch"],
        "router_replay": {
            "pairs": tokens * shape.layers,
            "logprob_gap": gaps,
            "validator_behind": {
                "mean": max(each.mean for each in behind),
                "largest": max(each.largest for each in behind),
            },
            "bytes_a_token": (with_and_without[0] - with_and_without[1]) / tokens,
            "bytes_a_token_48_layers_8_of_128": (of_large[0] - of_large[1]) / LARGE_TOKENS,
        },
    }
