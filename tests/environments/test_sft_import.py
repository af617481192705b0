"""A data set becomes rows of tokens: prompts as they were sampled from, every row whole, and what cannot be learnt refused by its row."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_prepare import checkpoint as mounted
from test_prepare import config
from transformers import AutoTokenizer

from shoal.contracts import keys
from shoal.contracts.final_model import FinalModel
from shoal.contracts.model_source import ModelSource
from shoal.contracts.run import RunConfig
from shoal.contracts.sft import SftDataset, SftManifest, SftSettings
from shoal.contracts.sft_data import Trace, read_sft_rows, write_traces
from shoal.environments.prepare import prepare
from shoal.environments.run_checks import CannotPrepare
from shoal.environments.sft_import import held_out_problems
from shoal.storage import Store
from shoal.storage.store import open_folder
from trace_files import put_traces, sha256

__all__ = ["mounted"]

TRACES = [
    Trace(f"sum-{a}-{b}", "arithmetic", f"{a}+{b}=\n", f"<{b}>{a + b}", 1.0, 9) for a in range(10, 18) for b in (21, 34)
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prepare pod's folder with this run's store and that of the run `traces`."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    (tmp_path / "store").mkdir()
    (tmp_path / "others" / "traces").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def store(home: Path) -> Store:
    return open_folder(home / "store", "shoal/arithmetic", deadline_seconds=5.0)


@pytest.fixture
def other(home: Path) -> Store:
    return open_folder(home / "others" / "traces", "shoal/traces", deadline_seconds=5.0)


@pytest.fixture
def checkpoint(mounted: Path) -> Path:
    """A checkpoint whose completions end with the tokenizer's own end token."""
    settings = json.loads((mounted / "config.json").read_text())
    (mounted / "config.json").write_text(json.dumps(settings | {"eos_token_id": 0}))
    return mounted


def sft(checkpoint: Path, dataset: SftDataset, **changes: Any) -> RunConfig:
    fields: dict[str, Any] = {"dataset": dataset, "held_out_share": 0.25, "max_sequence_length": 64}
    return config(mode="SFT", model=ModelSource(path=str(checkpoint)), sft=SftSettings(**(fields | changes)))


def rows_of(store: Store, *, held_out: bool) -> list[dict[str, Any]]:
    manifest = SftManifest.from_json(store.get(keys.SFT_MANIFEST))
    shards = [shard for shard in manifest.shards if shard.held_out == held_out]
    return [row for shard in shards for row in read_sft_rows(store.get(keys.sft_shard(shard.name))).to_pylist()]


def jsonl(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_traces_of_a_run_become_rows_that_read_as_they_did(
    home: Path, store: Store, other: Store, checkpoint: Path
) -> None:
    put_traces(other, TRACES)
    prepare(sft(checkpoint, SftDataset(run="traces")), store, home / "scratch")
    learnt, held_out = rows_of(store, held_out=False), rows_of(store, held_out=True)
    assert (len(learnt), len(held_out)) == (12, 4)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    told = {}
    for row in learnt + held_out:
        assert row["completion_tokens"][-1] == tokenizer.eos_token_id
        assert tokenizer.eos_token_id not in row["completion_tokens"][:-1] + row["prompt_tokens"]
        told[tokenizer.decode(row["prompt_tokens"])] = tokenizer.decode(row["completion_tokens"][:-1])
    assert told == {trace.prompt: trace.completion for trace in TRACES}
    assert {row["row_id"] for row in learnt + held_out} >= {"part-00000.parquet row 0 (sum-10-21)"}
    manifest = SftManifest.from_json(store.get(keys.SFT_MANIFEST))
    assert manifest.source == "data set traces of run traces"
    assert manifest.completion_tokens == sum(len(row["completion_tokens"]) for row in learnt)
    assert store.exists(keys.PREPARED)


def test_the_same_data_give_the_same_digest_and_others_another(
    home: Path, store: Store, other: Store, checkpoint: Path
) -> None:
    def digest_of(traces: list[Trace], **changes: Any) -> str:
        put_traces(other, traces)
        store.delete(keys.PREPARED)
        prepare(sft(checkpoint, SftDataset(run="traces"), **changes), store, home / "scratch")
        return SftManifest.from_json(store.get(keys.SFT_MANIFEST)).digest

    first = digest_of(TRACES)
    assert digest_of(TRACES) == first
    assert digest_of(TRACES[:-1]) != first
    assert digest_of(TRACES, held_out_share=0.5) != first


def test_problems_are_held_out_whole_and_alike_in_any_order() -> None:
    problems = {f"p{number}" for number in range(100)}
    drawn = held_out_problems(problems, 0.1, seed=1)
    assert len(drawn) == 10
    assert drawn != held_out_problems(problems, 0.1, seed=2)
    assert len(held_out_problems({"a", "b", "c"}, 0.01, seed=1)) == 1
    assert held_out_problems({"a"}, 0.5, seed=1) == set()
    assert held_out_problems(problems, 0.0, seed=1) == set()


def test_files_of_problems_get_the_prompt_that_the_environment_makes(
    home: Path, store: Store, checkpoint: Path
) -> None:
    table = pa.table({"prompt": ["12+34=", "56+12="], "completion": ["<>46", "<>68"], "problem_id": ["a", "b"]})
    (home / "data").mkdir()
    pq.write_table(table, home / "data" / "one.parquet")
    jsonl(home / "data" / "two.jsonl", {"prompt": "11+11=", "completion": "<>22", "task_type": "arithmetic"})
    dataset = SftDataset(path=str(home / "data"), prompts="Problem")
    prepare(sft(checkpoint, dataset, held_out_share=0.0), store, home / "scratch")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    prompts = [tokenizer.decode(row["prompt_tokens"]) for row in rows_of(store, held_out=False)]
    assert prompts == ["12+34=\n", "56+12=\n", "11+11=\n"]


def test_objects_below_the_prefix_are_read(home: Path, store: Store, checkpoint: Path) -> None:
    jsonl(home / "store" / "shoal" / "sums" / "a.jsonl", {"prompt": "11+11=\n", "completion": "<>22"})
    for key in ("sums/", "sums/a.jsonl"):
        store.delete(keys.PREPARED)
        prepare(sft(checkpoint, SftDataset(object=key)), store, home / "scratch")
        assert len(rows_of(store, held_out=False)) == 1


def refused(home: Path, store: Store, run: RunConfig) -> str:
    with pytest.raises(CannotPrepare) as error:
        prepare(run, store, home / "scratch")
    assert not store.exists(keys.PREPARED)
    return str(error.value)


def test_a_run_without_that_data_set_is_refused(home: Path, store: Store, other: Store, checkpoint: Path) -> None:
    said = refused(home, store, sft(checkpoint, SftDataset(run="traces", name="long")))
    assert said.startswith("spec.sft.dataset: run traces has no data set 'long' (datasets/long/card.json is not in its")


def test_a_part_with_other_bytes_is_refused(home: Path, store: Store, other: Store, checkpoint: Path) -> None:
    put_traces(other, TRACES)
    other.put(keys.dataset_part("traces", 1), write_traces(TRACES[:1]))
    said = refused(home, store, sft(checkpoint, SftDataset(run="traces")))
    assert "run traces: datasets/traces/part-00001.parquet has SHA-256" in said


def test_an_empty_data_set_is_refused(home: Path, store: Store, other: Store, checkpoint: Path) -> None:
    put_traces(other, [])
    said = refused(home, store, sft(checkpoint, SftDataset(run="traces")))
    assert said == ("spec.sft.dataset: data set traces of run traces has no rows; the data set needs at least one")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "1+1=\n", "completion": "<" + "1" * 80}, "odd.jsonl row 1: 87 tokens; allowed: 64 (spec.sft.maxSequenceLength)"),
        ({"prompt": "1+1=\n", "completion": ""}, "odd.jsonl row 1: the completion is empty; a row to learn has both"),
        ({"prompt": "", "completion": "2"}, "odd.jsonl row 1: the prompt is empty; a row to learn has both"),
        ({"prompt": "1+1=\n"}, "odd.jsonl row 1: completion is missing; allowed: text"),
        ({"prompt": [1], "completion": "2"}, "odd.jsonl row 1: prompt is a list; allowed: the text that the model continues."),
        ({"prompt": "1+1=\n", "completion": 2}, "odd.jsonl row 1: completion is a int; allowed: text"),
    ],
    ids=["too long", "empty completion", "empty prompt", "no completion", "problem for a prompt", "number"],
)  # fmt: skip
def test_a_row_that_cannot_be_learnt_is_named(
    home: Path, store: Store, checkpoint: Path, row: dict[str, Any], said: str
) -> None:
    path = jsonl(home / "odd.jsonl", {"prompt": "11+11=\n", "completion": "<>22"}, row)
    assert refused(home, store, sft(checkpoint, SftDataset(path=str(path)))).startswith(f"spec.sft.dataset: {said}")


def test_a_completion_that_is_written_with_the_end_token_is_not_given_another(
    home: Path, store: Store, checkpoint: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    end = tokenizer.eos_token
    given = [
        {"prompt": "11+11=\n", "completion": f"<>22{end}", "problem_id": "a"},
        {"prompt": "11+12=\n", "completion": "<>23", "problem_id": "b"},
    ]
    path = jsonl(home / "ended.jsonl", *given)
    prepare(sft(checkpoint, SftDataset(path=str(path))), store, home / "scratch")
    rows = rows_of(store, held_out=False) + rows_of(store, held_out=True)
    assert sorted(tokenizer.decode(row["completion_tokens"]) for row in rows) == [f"<>22{end}", f"<>23{end}"]
    store.delete(keys.PREPARED)
    only = jsonl(home / "only.jsonl", {"prompt": "11+11=\n", "completion": end})
    said = refused(home, store, sft(checkpoint, SftDataset(path=str(only))))
    assert said.endswith("the completion is empty; a row to learn has both")


def test_a_model_without_an_end_token_is_told(home: Path, store: Store, checkpoint: Path) -> None:
    for name in ("generation_config.json", "config.json"):
        settings = json.loads((checkpoint / name).read_text())
        del settings["eos_token_id"]
        (checkpoint / name).write_text(json.dumps(settings))
    path = jsonl(home / "a.jsonl", {"prompt": "11+11=\n", "completion": "<>22"})
    said = refused(home, store, sft(checkpoint, SftDataset(path=str(path))))
    assert said.startswith("spec.model: ")
    assert "neither generation_config.json nor config.json gives eos_token_id" in said


def test_a_tokenizer_that_is_larger_than_the_model_is_told(home: Path, store: Store, checkpoint: Path) -> None:
    settings = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(settings | {"vocab_size": 20}))
    path = jsonl(home / "a.jsonl", {"prompt": "11+11=\n", "completion": "<>22"})
    said = refused(home, store, sft(checkpoint, SftDataset(path=str(path))))
    assert "the tokenizer makes token" in said
    assert said.endswith("the model's vocabulary has 0 to 19")


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (SftDataset(path="/nowhere"), "/nowhere is not a file that ends in .parquet or .jsonl or .json or .csv"),
        (SftDataset(object="nothing/"), "there is no object nothing/ that ends in .parquet or .jsonl or .json or .csv below storage.prefix"),
        (SftDataset(object="nothing.jsonl"), "no object 'nothing.jsonl' in the store below storage.prefix"),
    ],
    ids=["path", "prefix", "object"],
)  # fmt: skip
def test_a_data_set_that_is_not_there_is_told(
    home: Path, store: Store, checkpoint: Path, dataset: SftDataset, said: str
) -> None:
    assert said in refused(home, store, sft(checkpoint, dataset))


def put_result(other: Store, checkpoint: Path) -> None:
    files = {}
    for path in checkpoint.iterdir():
        if path.suffix in (".json", ".safetensors"):
            other.put_file(keys.FINAL_MODEL + path.name, path)
            files[path.name] = sha256(path.read_bytes())
    other.put(keys.FINAL_MODEL + "proof_profile.json", b"{}")
    files["proof_profile.json"] = sha256(b"{}")
    seal = FinalModel(run="traces", version=3, model_id="m", files=files)
    other.put(keys.FINAL_SEAL, seal.to_json())


def of_run(home: Path) -> RunConfig:
    """A run that begins with the result of `traces`; of mode SFT, as others measure their proofs first, which takes long."""
    path = jsonl(home / "a.jsonl", {"prompt": "11+11=\n", "completion": "<>22"})
    settings = SftSettings(dataset=SftDataset(path=str(path)), max_sequence_length=64)
    return config(mode="SFT", model=ModelSource(run="traces"), sft=settings)


def test_the_result_of_another_run_is_a_base_model(home: Path, store: Store, other: Store, checkpoint: Path) -> None:
    put_result(other, checkpoint)
    prepare(of_run(home), store, home / "scratch")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert store.get(keys.BASE_MODEL + name) == (checkpoint / name).read_bytes()
    assert not store.exists(keys.BASE_MODEL + "proof_profile.json"), (
        "a profile is of the weights that it was measured on"
    )


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda other: other.delete(keys.FINAL_SEAL), "spec.model.run: run traces has no result: no object 'models/final.json'"),
        (lambda other: other.delete(keys.FINAL_MODEL + "config.json"), "run traces has no result: no object 'models/final/config.json'"),
        (lambda other: other.put(keys.FINAL_MODEL + "config.json", b"{}"), "models/final/config.json of run traces has SHA-256"),
    ],
    ids=["not finished", "a file is gone", "other bytes"],
)  # fmt: skip
def test_a_run_without_a_whole_result_is_refused(
    home: Path, store: Store, other: Store, checkpoint: Path, spoil: Callable[[Store], None], said: str
) -> None:
    put_result(other, checkpoint)
    spoil(other)
    assert said in refused(home, store, of_run(home))
