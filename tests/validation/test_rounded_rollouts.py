"""Quantised rollouts (ADR 0116): files of a real engine that rounds its weights pass in a run that says so, and all others are found.

Everything is in float32, where thresholds are tightest. Proofs of one set of weights fit no other.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tiny_policy
import torch
from court import DIGEST, JOB, METADATA, VERSION, Court, OnePolicy
from safetensors.torch import load_file
from socket_agent import Agent, SocketAgent
from test_worker_process import PUBLIC, WAITING_STATE, Process, publish

from shoal.contracts.pools import Quantization
from shoal.contracts.rollouts import BadRollouts, Rollout, RolloutMetadata, read_rollouts, write_rollouts
from shoal.contracts.verdicts import Verdict
from shoal.models.places import places
from shoal.models.rounded import fp8, is_rounded, restore, round_in_place
from shoal.toploc import codec
from shoal.validation.models import load_model, overwrite
from shoal.validation.policies import LoadedPolicy
from shoal.validation.prefill import prefill

replace = dataclasses.replace
ROUNDED = replace(METADATA, quantization="fp8")


@dataclass
class RoundedRun:
    """What one engine drew with rounded weights of the old version, and after a swap of the new, and the models that validators judge it by."""

    court: Court
    old: list[Rollout]
    new: list[Rollout]
    models: dict[str, torch.nn.Module]

    def judge(
        self,
        rows: list[Rollout],
        metadata: RolloutMetadata = ROUNDED,
        model: str = "old",
        quantization: Quantization | None = "fp8",
    ) -> Verdict:
        """The verdict of a run with this term, whose validators hold this model."""
        facts = replace(self.court.facts, quantization=quantization)
        policies = OnePolicy(LoadedPolicy(VERSION, DIGEST, self.models[model]))
        return replace(self.court, facts=facts, policies=policies).judge(rows, metadata)

    def proven_by(self, model: str, rows: list[Rollout]) -> list[Rollout]:
        """The same tokens with proofs and log-probabilities of another model, as a liar makes them that holds both."""
        made = []
        for row in rows:
            ours = prefill(self.models[model], row, self.court.facts.eos_token_ids)
            logprobs = [min(float(value), 0.0) for value in ours.logprobs]
            made.append(replace(row, proofs=codec.encode(ours.states), completion_logprobs=logprobs))
        return made


@pytest.fixture(scope="module")
def run(court: Court) -> RoundedRun:
    made = court.made
    requests = [tiny_policy.request_json(row.request) for row in made.planned]
    generate = {"do": "generate", "requests": requests}
    folders = {name: str(made.folder[name]) for name in ("old", "new")}
    start = {"do": "start", "folder": folders["old"], "quantization": "fp8"}
    answers = tiny_policy.run_engine([start, generate, {"do": "swap", "folder": folders["new"]}, generate]).results
    models = {name: load_model(made.folder[name], quantization="fp8") for name in ("old", "new")}
    models["published"] = made.model["old"]
    return RoundedRun(court, court.rows(answers[1]), court.rows(answers[3]), models)


def found(verdict: Verdict, reason: str) -> str:
    assert (verdict.outcome, verdict.reason) == ("reject", reason), (verdict.outcome, verdict.evidence)
    return verdict.evidence


def test_files_of_an_engine_that_rounds_are_accepted_before_and_after_a_swap(run: RoundedRun) -> None:
    for rows, model in ((run.old, "old"), (run.new, "new")):
        verdict = run.judge(rows, model=model)
        assert verdict.outcome == "accept", verdict.evidence
        assert verdict.left_out == []
    assert [row.completion_tokens for row in run.old] != [row.completion_tokens for row in run.new]


def test_a_worker_of_a_run_with_the_term_hands_in_files_that_pass(
    run: RoundedRun, court: Court, deadline: Callable[..., object]
) -> None:
    """The worker's own process, told of the term by the run's description and by nothing else."""
    public = PUBLIC.model_copy(update={"quantization": "fp8"})
    state = WAITING_STATE.model_copy(update={"state": "Healthy", "public": public})
    agent = Agent(state=state, tasks=tiny_policy.TASKS, step=tiny_policy.STEP)
    worker = Process("127.13.0.9")
    server = SocketAgent(worker.home, agent)
    try:
        publish(worker.home, VERSION, seed=0)
        deadline("a file", lambda: bool(agent.files), seconds=280)
    finally:
        server.close()
        worker.end()
    handed, data = agent.files[0]
    assert read_rollouts(data)[1].quantization == "fp8"
    facts = replace(
        court.facts,
        quantization="fp8",
        sampling=public.sampling,
        max_sequence_length=public.max_sequence_length,
    )
    policies = OnePolicy(LoadedPolicy(VERSION, f"{VERSION:064x}", run.models["old"]))
    job = JOB.model_copy(update={"lease": handed.lease, "submission": 0})
    verdict = replace(court, facts=facts, policies=policies).judge_bytes(data, job)
    assert verdict.outcome == "accept", verdict.evidence


def test_a_swap_that_does_not_round_is_found(run: RoundedRun, court: Court) -> None:
    found(run.judge(court.rows(court.made.swapped), model="new"), "computation")


def test_a_file_of_the_published_weights_is_found_where_weights_are_rounded(run: RoundedRun, court: Court) -> None:
    published = court.rows(court.made.old)
    assert "quantization is 'None'" in found(run.judge(published, METADATA), "identity")
    found(run.judge(published), "computation")
    found(run.judge(run.proven_by("old", published)), "redraw")


def test_a_file_of_rounded_weights_is_found_where_none_are(run: RoundedRun) -> None:
    ordinary: dict[str, Any] = {"model": "published", "quantization": None}
    assert "quantization is 'fp8'" in found(run.judge(run.old, ROUNDED, **ordinary), "identity")
    found(run.judge(run.old, METADATA, **ordinary), "computation")
    found(run.judge(run.proven_by("published", run.old), METADATA, **ordinary), "redraw")


def test_other_terms_than_the_runs_are_found(run: RoundedRun) -> None:
    for claimed in ("int4", "", "fp8 "):
        assert "quantization is" in found(run.judge(run.old, replace(METADATA, quantization=claimed)), "identity")


def test_only_files_with_the_term_name_it(run: RoundedRun, court: Court) -> None:
    assert read_rollouts(write_rollouts(run.old, ROUNDED))[1] == ROUNDED
    assert read_rollouts(write_rollouts(run.old, METADATA))[1] == METADATA
    assert b"shoal.quantization" not in write_rollouts(court.rows(court.made.old), METADATA)
    with pytest.raises(BadRollouts, match=r"lacks shoal\.model"):
        read_rollouts(write_rollouts(run.old, replace(ROUNDED, model=None)))


def test_the_rule_is_that_of_each_matrix_of_a_layer(run: RoundedRun, court: Court) -> None:
    folder = court.made.folder["old"]
    published = load_file(folder / "model.safetensors")
    state, changed = run.models["old"].state_dict(), set()
    for name, weight in published.items():
        wanted = fp8(weight) if is_rounded(name, weight.shape) else weight
        assert torch.equal(state[name], wanted), name
        changed |= {name} if not torch.equal(wanted, weight) else set()
    assert changed == {name for name in published if "_proj.weight" in name}


def test_rounding_in_place_is_the_same_and_can_be_undone(run: RoundedRun, court: Court) -> None:
    folder = court.made.folder["old"]
    model = load_model(folder)
    published = {name: weight.clone() for name, weight in model.state_dict().items()}
    round_in_place(model, "fp8")
    assert all(torch.equal(weight, run.models["old"].state_dict()[name]) for name, weight in model.state_dict().items())
    restore(model, folder)
    assert all(torch.equal(weight, published[name]) for name, weight in model.state_dict().items())
    overwrite(model, court.made.folder["new"], quantization="fp8")
    assert all(torch.equal(weight, run.models["new"].state_dict()[name]) for name, weight in model.state_dict().items())
    assert places(model).keys() == published.keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_to_the_nearest_of_the_values_of_e4m3(dtype: torch.dtype) -> None:
    """Against a table of all values, which is searched."""
    torch.manual_seed(0)
    table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    table = table[table.isfinite()].unique().double().numpy()
    weight = (torch.randn(64, 96) * torch.logspace(-4, 1, 64)[:, None]).to(dtype)
    weight[3] = 0.0
    weight[5, 7] = 60000.0
    scale = np.maximum(weight.float().abs().amax(1, keepdim=True).numpy(), np.float32(1e-12)) / np.float32(448.0)
    scaled = weight.float().numpy() / scale
    nearest = table[np.abs(scaled[..., None].astype(np.float64) - table).argmin(-1)]
    distance = np.abs(scaled[..., None].astype(np.float64) - table)
    ties = (distance == distance.min(-1, keepdims=True)).sum(-1) > 1
    wanted = torch.from_numpy(nearest.astype(np.float32) * scale).to(dtype)
    rounded = fp8(weight)
    assert torch.equal(rounded[torch.from_numpy(~ties)], wanted[torch.from_numpy(~ties)])
    assert rounded.dtype == dtype
    assert not rounded[3].any()


@pytest.mark.parametrize(
    ("name", "shape", "rounds"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (8, 8), True),
        ("model.layers.11.mlp.experts.7.gate_proj.weight", (8, 8), True),
        ("model.layers.3.self_attn.kv_a_proj_with_mqa.weight", (8, 8), True),
        ("model.layers.3.mlp.gate.weight", (8, 8), False),
        ("model.layers.3.block_sparse_moe.router.weight", (8, 8), False),
        ("model.layers.3.input_layernorm.weight", (8,), False),
        ("model.layers.3.self_attn.q_proj.bias", (8,), False),
        ("model.embed_tokens.weight", (8, 8), False),
        ("lm_head.weight", (8, 8), False),
    ],
)
def test_embeddings_heads_norms_biases_and_routers_stay(name: str, shape: tuple[int, ...], rounds: bool) -> None:
    assert is_rounded(name, shape) is rounds
