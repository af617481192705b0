"""Prepare: base model and task table first, the seal last; done once, and done again from any stop."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from samples import PROOF_PROFILE, run_config
from shoal.contracts import keys
from shoal.contracts.algorithm import Algorithm, VinePpo
from shoal.contracts.completions import LengthReward
from shoal.contracts.datasets import DatasetSource
from shoal.contracts.final_model import ORIGIN_FILE
from shoal.contracts.model_source import GeneratedModel, ModelSource
from shoal.contracts.pools import PoolTerms
from shoal.contracts.proof_profile import ProofProfile
from shoal.contracts.recipe import Recipe
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.settings import Rollouts
from shoal.contracts.task_source import TaskSource
from shoal.contracts.task_table import read_tasks
from shoal.contracts.tasks import tasks_digest
from shoal.environments import digest, generated_model, proof_calibration
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.generated_tokenizer import train_tokenizer
from shoal.environments.prepare import prepare
from shoal.environments.prompts import prompt_tokens
from shoal.environments.run_checks import CannotPrepare
from shoal.environments.sampling import pass_rate, sample
from shoal.environments.tokens import eos_token_ids
from shoal.storage import Store

TARGETS = [20, 24]


def config(**changes: Any) -> RunConfig:
    """A model that is made in some seconds: it is asked to be right never."""
    generated = GeneratedModel(hidden_size=128, layers=1, warm_start_pass_rate=0.0, warm_start_max_steps=400)
    fields = {
        "model": ModelSource(generated=generated),
        "tasks": TaskSource(environment="arithmetic", count=50),
        "length_reward": LengthReward(targets=TARGETS),
        "recipe": Recipe(max_sequence_length=96),
    }
    return run_config(**(fields | changes))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint as somebody mounts it, with its proof profile, a README, what its run asked, and a pickle, which is nobody's business."""
    folder = checkpoint_of_width(tmp_path / "mounted", 128)
    (folder / "proof_profile.json").write_bytes(PROOF_PROFILE.to_json())
    (folder / "README.md").write_text("# A model")
    (folder / "optimizer.bin").write_bytes(b"pickle")
    (folder / ORIGIN_FILE).write_bytes(b"{}")
    return folder


def checkpoint_of_width(folder: Path, width: int) -> Path:
    torch.manual_seed(0)
    shape = {"hidden_size": width, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    tokenizer = train_tokenizer(["12+34=", " Think for 20 tokens before giving a response.\n"])
    Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer), num_key_value_heads=1, head_dim=32, eos_token_id=tokenizer.eos_token_id, **shape
        )
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def mounted(folder: Path) -> RunConfig:
    return config(model=ModelSource(path=str(folder)))


def test_a_mounted_checkpoint_and_a_task_table_are_put_into_the_store(
    store: Store, tmp_path: Path, checkpoint: Path
) -> None:
    done = prepare(mounted(checkpoint), store, tmp_path / "scratch")
    assert Prepared.from_json(store.get(keys.PREPARED)) == done
    assert done.environment_digest == digest(Arithmetic())
    assert done.base_pass_rate is None
    tasks = read_tasks(store.get(keys.task_table(done.tasks_digest)))
    assert tasks_digest(tasks) == done.tasks_digest
    assert len(tasks) == done.task_count == 50
    names = {info.key.removeprefix(keys.BASE_MODEL) for info in store.list(keys.BASE_MODEL)}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert not names & {"README.md", "optimizer.bin", ORIGIN_FILE}


def test_a_base_model_without_a_proof_profile_is_calibrated_and_carries_it_from_then_on(
    store: Store, tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_calibration, "RUN_SEQUENCES", 24)
    (checkpoint / "proof_profile.json").unlink()
    profile = prepare(mounted(checkpoint), store, tmp_path / "scratch").proof_profile
    assert profile is not None
    assert (profile.hidden_size, profile.dtype, profile.size.sequences) == (128, "float32", 24)
    assert profile.honest.rejected_chunks.events == 0
    assert ProofProfile.from_json(store.get(keys.BASE_MODEL + "proof_profile.json")) == profile
    assert not (checkpoint / "proof_profile.json").exists()  # the mounted folder is not ours to write to


def test_a_profile_that_a_model_brings_is_taken(store: Store, tmp_path: Path, checkpoint: Path) -> None:
    assert prepare(mounted(checkpoint), store, tmp_path / "scratch").proof_profile == PROOF_PROFILE


def test_a_profile_of_another_model_is_refused(store: Store, tmp_path: Path, checkpoint: Path) -> None:
    (checkpoint / "proof_profile.json").write_bytes(PROOF_PROFILE.model_copy(update={"hidden_size": 256}).to_json())
    with pytest.raises(CannotPrepare, match="is of a model 256 wide, this one is 128 wide: calibrate again"):
        prepare(mounted(checkpoint), store, tmp_path / "scratch")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_profile_of_another_data_type_is_refused(store: Store, tmp_path: Path, checkpoint: Path, dtype: str) -> None:
    """Honest proofs of 16 bits are beyond float32's thresholds, and forged ones of float32 within those of 16 bits."""
    (checkpoint / "proof_profile.json").write_bytes(PROOF_PROFILE.model_copy(update={"dtype": dtype}).to_json())
    with pytest.raises(CannotPrepare, match=f"measured in {dtype}, but engines serve this model in float32"):
        prepare(mounted(checkpoint), store, tmp_path / "scratch")


def test_a_model_too_narrow_for_proofs_is_refused(store: Store, tmp_path: Path) -> None:
    narrow = checkpoint_of_width(tmp_path / "narrow", 32)
    with pytest.raises(CannotPrepare, match="hidden size 32: a proof needs 128 values"):
        prepare(mounted(narrow), store, tmp_path / "scratch")


def test_a_model_too_large_to_calibrate_here_goes_without_where_no_stranger_may_join(
    store: Store, tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_calibration, "CPU_BYTES", 1000)
    (checkpoint / "proof_profile.json").unlink()
    strangers = mounted(checkpoint).model_copy(
        update={"pools": [PoolTerms(name="home"), PoolTerms(name="world", open=True)]}
    )
    with pytest.raises(
        CannotPrepare, match=r"pool world is open to strangers.*set spec\.prepare\.gpu\.count, or put a"
    ):
        prepare(strangers, store, tmp_path / "scratch")
    (checkpoint / "proof_profile.json").write_bytes(PROOF_PROFILE.to_json())
    assert prepare(strangers, store, tmp_path / "scratch").proof_profile == PROOF_PROFILE
    store.delete(keys.PREPARED)
    store.delete(keys.BASE_MODEL + "proof_profile.json")
    (checkpoint / "proof_profile.json").unlink()
    closed = strangers.model_copy(update={"pools": strangers.pools[:1]})
    assert prepare(closed, store, tmp_path / "scratch").proof_profile is None
    assert not store.exists(keys.BASE_MODEL + "proof_profile.json")


def test_a_run_that_is_prepared_is_left_as_it_is(store: Store, tmp_path: Path, checkpoint: Path) -> None:
    first = prepare(mounted(checkpoint), store, tmp_path / "scratch")
    before = [(info.key, info.modified_unix) for info in store.list("models/") + store.list("tasks/")]
    (checkpoint / "config.json").unlink()
    assert prepare(mounted(checkpoint), store, tmp_path / "scratch") == first
    assert [(info.key, info.modified_unix) for info in store.list("models/") + store.list("tasks/")] == before


def test_a_store_with_an_earlier_run_of_this_name_on_another_model_is_refused(
    store: Store, tmp_path: Path, checkpoint: Path
) -> None:
    """A run that was deleted and made again: its workers would name the new model in files for the old one, and be evicted."""
    given = mounted(checkpoint)
    first = prepare(given, store, tmp_path / "scratch")
    with pytest.raises(
        CannotPrepare,
        match=r"earlier run of this name, with the model arithmetic-tiny, not run/other: .*another metadata\.name",
    ) as refusal:
        prepare(given.model_copy(update={"model_id": "run/other"}), store, tmp_path / "scratch")
    assert not refusal.value.passing
    assert Prepared.from_json(store.get(keys.PREPARED)) == first


def test_what_a_stopped_try_left_of_another_model_goes(store: Store, tmp_path: Path, checkpoint: Path) -> None:
    store.put(keys.BASE_MODEL + "model-00001-of-00002.safetensors", b"half")
    prepare(mounted(checkpoint), store, tmp_path / "scratch")
    assert not store.exists(keys.BASE_MODEL + "model-00001-of-00002.safetensors")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_is_no_checkpoint_is_refused(
    store: Store, tmp_path: Path, checkpoint: Path, missing: str
) -> None:
    (checkpoint / missing).unlink()
    with pytest.raises(CannotPrepare, match=r"spec.model.path: .* (lacks|has no) (\*.safetensors|\w+.json)"):
        prepare(mounted(checkpoint), store, tmp_path / "scratch")
    assert not store.exists(keys.PREPARED)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (ModelSource(path="/nowhere"), "spec.model.path: /nowhere is not a folder"),
        (
            ModelSource(hugging_face="them/base", revision="0" * 40),
            "spec.model.huggingFace: cannot get the model them/base",
        ),
    ],
)
def test_the_model_is_looked_at_before_the_tasks(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: ModelSource, said: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    wrong = TaskSource(environment="math", dataset=DatasetSource(path="/no/tasks"))
    with pytest.raises(CannotPrepare, match=said):
        prepare(config(model=model, tasks=wrong), store, tmp_path / "scratch")


def test_a_folder_that_is_not_there_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(CannotPrepare, match=r"spec.model.path: .*nowhere is not a folder; mount the checkpoint there"):
        prepare(mounted(tmp_path / "nowhere"), store, tmp_path / "scratch")


def test_more_tasks_than_the_environment_has_are_refused(store: Store, tmp_path: Path) -> None:
    asked = config(tasks=TaskSource(environment="arithmetic", count=9000))
    with pytest.raises(CannotPrepare, match=r"spec.tasks: arithmetic: 9000 tasks requested; allowed: 1 to 8100"):
        prepare(asked, store, tmp_path / "scratch")


class OtherEnvironment:
    """Somebody's environment: the same tasks, another class."""

    name, version = "other", "1"
    tasks = staticmethod(Arithmetic().tasks)
    prompt = staticmethod(Arithmetic().prompt)
    score = staticmethod(Arithmetic().score)
    gold = staticmethod(Arithmetic().gold)


def test_continuations_in_an_environment_with_tools_are_refused(store: Store, tmp_path: Path) -> None:
    tools = config(tasks=TaskSource(environment="tool", count=8), recipe=Recipe(algorithm=Algorithm(vineppo=VinePpo())))
    several = config(tasks=TaskSource(environment="tool", count=8), rollouts=Rollouts(versions="Several"))
    with pytest.raises(
        CannotPrepare, match=r"rollouts\.versions: environment tool has tools, and rows with calls are of one"
    ):
        prepare(several, store, tmp_path / "several")
    routed = config(recipe=Recipe(router_replay="Report"), rollouts=Rollouts(versions="Several"))
    with pytest.raises(CannotPrepare, match=r"rollouts\.versions: Several does not go with recipe\.routerReplay"):
        prepare(routed, store, tmp_path / "routed")
    with pytest.raises(CannotPrepare, match=r"algorithm\.vineppo: environment tool has tools"):
        prepare(tools, store, tmp_path / "scratch")
    assert not list(store.list("tasks/"))


@pytest.mark.parametrize("environment", ["tool", "arithmetic"])
def test_credit_by_turns_where_nothing_rewards_a_turn_is_refused(
    store: Store, tmp_path: Path, environment: str
) -> None:
    asked = config(tasks=TaskSource(environment=environment, count=8), recipe=Recipe(credit="Turn"))
    with pytest.raises(
        CannotPrepare, match=rf"spec\.recipe\.credit: environment {environment} rewards whole episodes only"
    ):
        prepare(asked, store, tmp_path / "scratch")
    assert not list(store.list("tasks/"))


def test_scores_that_cannot_be_made_again_are_for_members_alone(
    store: Store, tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = OtherEnvironment()
    judge.name = "judge"
    monkeypatch.setattr(judge, "repeatable", False, raising=False)
    monkeypatch.setattr(
        judge, "score", lambda task, text: pytest.fail("prepare has no network for a judge"), raising=False
    )
    monkeypatch.setattr("shoal.environments.task_source.load", lambda name: judge)
    monkeypatch.setattr("shoal.environments.digest", lambda environment: "ab" * 32)
    closed = mounted(checkpoint).model_copy(update={"pools": [PoolTerms(name="home")]})
    open_too = closed.model_copy(update={"pools": [*closed.pools, PoolTerms(name="world", open=True)]})
    with pytest.raises(
        CannotPrepare, match=r"judge gives scores that cannot be made again .* and pool world is open to strangers, who"
    ):
        prepare(open_too, store, tmp_path / "scratch")
    by_turn = closed.model_copy(update={"recipe": Recipe(credit="Turn")})
    turns = {"functions": (), "most_turns": 2, "longest_turn": None, "answers": lambda task, turns: None}
    with monkeypatch.context() as patch:
        for member, value in {"rewards_turns": True, **turns}.items():
            patch.setattr(judge, member, value, raising=False)
        with pytest.raises(CannotPrepare, match=r"spec\.recipe\.credit: .* Turn needs those that validators make"):
            prepare(by_turn, store, tmp_path / "scratch")
    monkeypatch.setattr(judge, "stop", ("=",), raising=False)
    monkeypatch.setattr(judge, "most_calls", 1, raising=False)
    monkeypatch.setattr(judge, "observe", lambda task, text: None, raising=False)
    with pytest.raises(CannotPrepare, match="its calls are run again before its scores: use functions of turns"):
        prepare(closed, store, tmp_path / "scratch")
    monkeypatch.delattr(judge, "observe")
    assert not store.exists(keys.PREPARED)
    assert prepare(closed, store, tmp_path / "scratch").rewards_claimed


def test_scores_that_can_be_made_again_are_no_claims(store: Store, tmp_path: Path, checkpoint: Path) -> None:
    assert b"rewards_claimed" not in prepare(mounted(checkpoint), store, tmp_path / "scratch").to_json()


def test_a_machine_that_cannot_score_is_tried_again_and_no_gold_is_looked_at(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = OtherEnvironment()
    monkeypatch.setattr(other, "problems", lambda: ["programs cannot be isolated here"], raising=False)
    monkeypatch.setattr("shoal.environments.task_source.load", lambda name: other)
    with pytest.raises(CannotPrepare, match=r"spec.tasks.environment: programs cannot be isolated here") as caught:
        prepare(config(), store, tmp_path / "scratch")
    assert caught.value.passing


def test_a_generated_model_for_another_environment_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.environments.task_source.load", lambda name: OtherEnvironment())
    with pytest.raises(CannotPrepare, match=r"made for the tasks of 'arithmetic', spec.tasks.environment is 'other'"):
        prepare(config(), store, tmp_path / "scratch")


def test_a_model_without_a_source_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(
        CannotPrepare, match=r"spec.model: no source is given; allowed: one of huggingFace, path, generated, run"
    ):
        prepare(config(model=ModelSource()), store, tmp_path / "scratch")


@pytest.mark.parametrize("text", ["12+34=\n", "<9+9+0=18,9+9+1=19>198", "any text, é and 漢 too", " Think for 20"])
def test_the_tokenizer_gives_every_text_back(text: str) -> None:
    tokenizer = train_tokenizer(["12+34= Think for 20 tokens before giving a response.\n"] * 9)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_a_generated_model_is_a_checkpoint_that_answers_and_the_same_one_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated_model, "WORTH_MEASURING", 10.0)  # a few updates only: here it need not be right
    monkeypatch.setattr(proof_calibration, "RUN_SEQUENCES", 8)
    done = prepare(config(), store, tmp_path / "scratch")
    folder = tmp_path / "scratch" / "base"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
    assert model.config.max_position_embeddings == 96
    assert eos_token_ids(folder) == {tokenizer.eos_token_id}

    environment = Arithmetic()
    tasks = environment.tasks(64, seed=1)
    prompts = [prompt_tokens(tokenizer, environment, task, 24, None) for task in tasks]
    assert {len(prompt) for prompt in prompts} == {9}  # digits, signs, and the request for a length in four tokens
    drawn = sample(model, prompts, 40, seed=0)
    assert drawn == sample(model, prompts, 40, seed=0) != sample(model, prompts, 40, seed=1)
    assert all(tokenizer.eos_token_id not in tokens[:-1] for tokens in drawn)
    rate = pass_rate(model, tokenizer, environment, [(task, 24) for task in tasks], seed=0)
    assert done.base_pass_rate is not None
    assert abs(rate - done.base_pass_rate) < 0.2

    weights = store.get(keys.BASE_MODEL + "model.safetensors")
    store.delete(keys.PREPARED)
    prepare(config(), store, tmp_path / "again")
    assert store.get(keys.BASE_MODEL + "model.safetensors") == weights


def test_a_warm_start_that_does_not_get_there_says_what_to_change(store: Store, tmp_path: Path) -> None:
    hopeless = GeneratedModel(hidden_size=128, layers=1, warm_start_pass_rate=0.9, warm_start_max_steps=3)
    with pytest.raises(
        CannotPrepare,
        match=r"spec.model.generated: after 3 updates 0% .* but the target is 90%; raise model.generated.w",
    ) as caught:
        prepare(config(model=ModelSource(generated=hopeless)), store, tmp_path / "scratch")
    assert not caught.value.passing
    assert not store.exists(keys.PREPARED)


def test_the_bound_on_files_is_of_what_is_drawn_where_a_file_has_more_rows_than_are_measured() -> None:
    plain, vine = (
        run_config(recipe=Recipe(group_size=8)),
        run_config(recipe=Recipe(algorithm=Algorithm(vineppo=VinePpo()), group_size=8)),
    )
    assert proof_calibration.rows_of_a_check(plain) == 4 * 8
    rows = proof_calibration.rows_of_a_check(vine)
    assert rows == 4 + 39, "a tenth of 32 completions and of 384 continuations, four of each at least"
    assert proof_calibration.RUN_SEQUENCES // rows >= 8, "of fewer files no bound would come"
