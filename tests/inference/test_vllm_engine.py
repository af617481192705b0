"""The real vLLM engine against transformers: tokens, log-probabilities, proofs, weight swap."""

import numpy as np
import pytest
import torch
from tiny_policy import EOS, MAX_LENGTH, Scenario, scenario

from shoal.inference.completions import Completion
from shoal.inference.engine_memory import kv_cache_bytes
from shoal.toploc import codec


@pytest.fixture(scope="module")
def made() -> Scenario:
    return scenario()


@torch.inference_mode()
def differences(made: Scenario, policy: str, completions: list[Completion]) -> tuple[float, list[codec.ProofErrors]]:
    """Largest difference of log-probabilities, and errors of all proofs, against a forward pass by transformers."""
    model, worst, errors = made.model[policy], 0.0, []
    for row, completion in zip(made.planned, completions, strict=True):
        prompt, count = list(row.request.prompt_tokens), len(completion.tokens)
        hidden = model.model(torch.tensor([prompt + completion.tokens])).last_hidden_state[0]
        states = hidden[len(prompt) - 1 : len(prompt) + count - 1]
        logprobs = torch.log_softmax(model.lm_head(states) / row.request.temperature, -1)
        chosen = logprobs.gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
        worst = max(worst, float((chosen - torch.tensor(completion.logprobs)).abs().max()))
        errors += codec.compare(codec.parse(completion.proofs, count, 128), np.asarray(states))
    return worst, errors


def assert_honest(made: Scenario, policy: str, completions: list[Completion]) -> None:
    worst, errors = differences(made, policy, completions)
    assert worst < 1e-4  # float32; log-probabilities of another policy differ by whole numbers
    assert max(error.exponent_mismatches + error.sign_mismatches for error in errors) <= 1
    assert max(error.mantissa_error_mean for error in errors) < 0.05


def test_proofs_and_logprobs_are_those_of_the_policy_at_the_sampling_temperature(made: Scenario) -> None:
    assert_honest(made, "old", made.old)


def test_more_sequences_than_fit_in_a_batch_keep_their_order_and_proofs(made: Scenario) -> None:
    assert len(made.old) == 24  # the engine decodes 16 at a time
    assert len({tuple(completion.tokens) for completion in made.old}) > 20


def test_a_completion_ends_with_an_end_token_or_at_the_limit(made: Scenario) -> None:
    reasons = set()
    for row, completion in zip(made.planned * 2, made.old + made.swapped, strict=True):
        reasons.add(completion.finish_reason)
        assert EOS not in completion.tokens[:-1]
        assert (completion.tokens[-1] == EOS) == (completion.finish_reason == "stop")
        if completion.finish_reason == "length":
            assert len(completion.tokens) == row.request.max_tokens
    assert reasons == {"stop", "length"}


def test_the_same_seeds_give_the_same_completions_also_after_an_abort(made: Scenario) -> None:
    assert made.stopped == "stopped with 24 sequences unfinished: the test says so"
    assert [completion.tokens for completion in made.after_stop] == [completion.tokens for completion in made.old]
    assert [completion.proofs for completion in made.after_stop] == [completion.proofs for completion in made.old]


def test_a_swapped_engine_equals_a_fresh_one(made: Scenario) -> None:
    assert_honest(made, "new", made.swapped)
    assert [completion.tokens for completion in made.swapped] == [completion.tokens for completion in made.fresh]
    for swapped, fresh in zip(made.swapped, made.fresh, strict=True):
        assert swapped.logprobs == pytest.approx(fresh.logprobs, abs=1e-5)


def test_requests_that_join_while_others_run_and_are_aborted_give_the_same_completions(made: Scenario) -> None:
    assert_honest(made, "new", made.joined)
    assert [completion.tokens for completion in made.joined] == [completion.tokens for completion in made.swapped]


def test_a_swap_renews_a_head_that_shares_the_embedding(made: Scenario) -> None:
    assert_honest(made, "tied-new", made.tied_swapped)


def test_a_swap_to_other_tensors_is_refused(made: Scenario) -> None:
    assert "tensors differ from those of the running model, first lm_head.weight" in made.refused_swap


def test_proofs_of_one_policy_do_not_pass_for_another(made: Scenario) -> None:
    worst, errors = differences(made, "new", made.old)
    assert worst > 1.0
    assert min(error.exponent_mismatches for error in errors) > 38


def test_the_cache_is_what_the_sequences_can_fill_within_bounds() -> None:
    config = {
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_hidden_layers": 10,
        "hidden_size": 512,
    }
    each = 2 * 10 * 2 * 64 * 2  # keys and values, layers, heads, head size, bytes of bfloat16
    assert kv_cache_bytes(config, "bfloat16", 100_000) == 100_000 * each
    assert kv_cache_bytes(config, "float32", 100_000) == 200_000 * each
    assert kv_cache_bytes(config, "float32", MAX_LENGTH) == 64 << 20
    assert kv_cache_bytes(config, "float32", 1 << 40) == 4 << 30
