"""Worker, validator, calibration, supervised rows and evaluation make the same prompt of a task, and end an answer alike."""

import json
from pathlib import Path
from typing import Any

import pytest

from chat_model import SETTINGS, cut_tokenizer
from real_tokenizers import talk, task
from samples import run_config
from shoal.contracts import keys
from shoal.contracts.final_model import ModelOrigin
from shoal.contracts.prompts import PromptSettings, PromptTerms
from shoal.contracts.rollouts import Rollout
from shoal.contracts.sft import SftDataset, SftSettings
from shoal.contracts.sft_data import SftRow, read_sft_rows
from shoal.contracts.task_source import TaskSource
from shoal.contracts.tasks import Task
from shoal.environments import load
from shoal.environments.prompt_check import decided
from shoal.environments.prompts import load_tokenizer, prompt_tokens
from shoal.environments.sft_import import BadSftData, import_rows
from shoal.environments.tokens import completion_text, eos_token_ids
from shoal.inference.evaluation.sampling import EvaluationRequest, asked_terms
from shoal.storage import Store
from shoal.storage.store import open_folder
from shoal.validation.checks.termination import check_ends
from shoal.validation.facts import Facts, File

QUESTIONS: list[Any] = [
    "What is 1+1?",
    talk(("system", "Be terse."), ("user", "2+2?"), ("assistant", "4"), ("user", "And 3 more?")),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut_tokenizer(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def tokenizer(base: Path) -> Any:
    return load_tokenizer(base)


@pytest.fixture(scope="module")
def terms(base: Path, tokenizer: Any) -> PromptTerms:
    return decided(SETTINGS, base, tokenizer)


def wanted(tokenizer: Any, terms: PromptTerms | None, asked: Any) -> list[int]:
    return prompt_tokens(tokenizer, load("math"), task(asked), None, terms)


def rows(
    tmp_path: Path, base: Path, terms: PromptTerms, *given: dict[str, Any], prompts: str = "Problem"
) -> list[SftRow]:
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(each) + "\n" for each in given))
    (tmp_path / "store").mkdir(exist_ok=True)
    store: Store = open_folder(tmp_path / "store", "shoal/chat", deadline_seconds=5.0)
    dataset = SftDataset.model_validate({"path": str(tmp_path / "data.jsonl"), "prompts": prompts})
    config = run_config(
        mode="SFT", tasks=TaskSource(environment="math"), sft=SftSettings(dataset=dataset, held_out_share=0.0)
    )
    manifest = import_rows(config, store, base, load("math"), tmp_path / "scratch", terms)
    [shard] = manifest.shards
    return [SftRow(**each) for each in read_sft_rows(store.get(keys.sft_shard(shard.name))).to_pylist()]


def test_supervised_rows_have_the_prompts_of_rollouts_and_end_as_the_template_does(
    tmp_path: Path, base: Path, tokenizer: Any, terms: PromptTerms
) -> None:
    problems = [each if isinstance(each, str) else [turn.model_dump() for turn in each] for each in QUESTIONS]
    found = rows(tmp_path, base, terms, *({"prompt": each, "completion": "\\boxed{2}"} for each in problems))
    assert [row.prompt_tokens for row in found] == [wanted(tokenizer, terms, each) for each in QUESTIONS]
    assert {completion_text(tokenizer, row.completion_tokens[-1:], frozenset()) for row in found} == {"<|im_end|>"}


def test_a_prompt_as_it_was_written_is_learnt_as_it_was_sampled_from(
    tmp_path: Path, base: Path, tokenizer: Any, terms: PromptTerms
) -> None:
    sampled = wanted(tokenizer, terms, QUESTIONS[1])
    text = completion_text(tokenizer, sampled, frozenset())
    [row] = rows(tmp_path, base, terms, {"prompt": text, "completion": "7"}, prompts="AsWritten")
    assert row.prompt_tokens == sampled


def test_messages_that_cannot_be_asked_stop_the_import_with_their_row(
    tmp_path: Path, base: Path, terms: PromptTerms
) -> None:
    turns = [turn.model_dump() for turn in talk(("user", "1+1?"), ("assistant", "2"))]
    with pytest.raises(
        BadSftData, match=r"data.jsonl row 0: no prompt can be made of it: its last message is of role 'assistant'"
    ):
        rows(tmp_path, base, terms, {"prompt": turns, "completion": "2"})


def test_shoal_eval_asks_as_the_models_run_did_unless_told_otherwise(
    base: Path, tokenizer: Any, terms: PromptTerms
) -> None:
    asked = EvaluationRequest(4, 0.6)
    assert asked_terms(asked, ModelOrigin(run="r", version=3, prompt=terms), base, tokenizer) == terms
    assert asked_terms(asked, ModelOrigin(run="r", version=3), base, tokenizer) is None  # of a run that had raw prompts
    assert asked_terms(asked, None, base, tokenizer) == decided(None, base, tokenizer)
    other = EvaluationRequest(4, 0.6, prompt=PromptSettings(system="Count."))
    found = asked_terms(other, ModelOrigin(run="r", version=3, prompt=terms), base, tokenizer)
    assert found is not None
    assert found.system == "Count."


def ending(tokens: list[int], finish_reason: str) -> Rollout:
    size = len(tokens)
    return Rollout(
        run="r", step=0, policy_version=0, node="00" * 32, submission=0, problem_id="p", prompt_index=0, sample_index=0,
        prompt_tokens=[1], completion_tokens=tokens, completion_logprobs=[-1.0] * size, completion_mask=[True] * size,
        finish_reason=finish_reason, task_type="math", target_length=None, task_reward=0.0, length_penalty=0.0, reward=0.0,
        seed=1, temperature=1.0, proofs=b"",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("end", "reason", "said"),
    [
        ("<|im_end|>", "stop", None),
        ("<|endoftext|>", "stop", None),
        ("<|im_start|>", "stop", "finish_reason is stop, the last token is not an end-of-sequence token"),
        ("<|endoftext|>", "length", "finish_reason is length, the last token is an end-of-sequence token"),
    ],
)
def test_every_stop_token_ends_an_answer_and_a_claimed_stop_on_another_is_refused(
    base: Path, tokenizer: Any, end: str, reason: str, said: str | None
) -> None:
    config = run_config()
    facts = Facts(
        run="r", model_id="m", environment=load("math"), environment_digest="", tasks=[Task(problem_id="p", task_type="m", prompt="?")],
        tokenizer=tokenizer, eos_token_ids=eos_token_ids(base), vocabulary=1026, hidden_size=128, group_size=1, max_sequence_length=64,
        sampling=config.sampling.model_copy(update={"groups_per_submission": 1}), length_reward=None, validation=config.validation,
    )  # fmt: skip
    [stop] = tokenizer.encode(end, add_special_tokens=False)
    found = check_ends(File(None, [ending([5, 6, stop], reason)], None), facts)
    assert (found.evidence if found is not None else None) == (f"row 0: {said}" if said else None)
