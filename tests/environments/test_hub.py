"""Data sets of a hub, read by its own library from a stand-in: subsets and splits by a README or by folders, and mistakes in one line each."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import COMMIT, Hub, serving
from huggingface_hub.errors import HfHubHTTPError

from samples import run_config
from shoal.contracts.datasets import DatasetSource
from shoal.contracts.task_source import TaskSource
from shoal.environments.hub import is_away
from shoal.environments.task_source import BadTaskSource, Found, RunSource, find_tasks

README = b"""---
license: mit
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: train
    path: [socratic/train-*]
---
# Grade school mathematics
"""


def rows(*answers: int) -> list[dict[str, Any]]:
    return [{"question": f"What is {n} + 0?", "answer": f"It is {n}.\n#### {n}"} for n in answers]


def parquet(found: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(found), sink)
    return sink.getvalue()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        found.files["openai/gsm8k"] = {
            ".gitattributes": b"",
            "README.md": README,
            "main/train-00000-of-00002.parquet": parquet(rows(1, 2)),
            "main/train-00001-of-00002.parquet": parquet(rows(3)),
            "main/test-00000-of-00001.parquet": parquet(rows(9)),
            "socratic/train-00000-of-00001.parquet": parquet(rows(5)),
        }
        yield found


def found(scratch: Path, repository: str = "openai/gsm8k", **dataset: Any) -> Found:
    source = DatasetSource(hugging_face=repository, **{"revision": "main", **dataset})
    config = run_config(tasks=TaskSource(environment="math", dataset=source))
    return find_tasks(config, RunSource.of_run(config.tasks)[0], scratch)


def refused(scratch: Path, repository: str = "openai/gsm8k", **dataset: Any) -> tuple[str, bool]:
    with pytest.raises(BadTaskSource) as caught:
        found(scratch, repository, **dataset)
    assert "\n" not in str(caught.value)
    return str(caught.value), caught.value.passing


def answers(result: Found) -> list[str]:
    return [str(task.verification_info["answer"]) for task in result.tasks]


def test_a_subset_and_split_are_the_files_that_the_readme_says_and_no_other_is_fetched(
    hub: Hub, tmp_path: Path
) -> None:
    assert answers(found(tmp_path, subset="main")) == ["1", "2", "3"]
    assert sorted(hub.served) == ["README.md", "main/train-00000-of-00002.parquet", "main/train-00001-of-00002.parquet"]
    assert answers(found(tmp_path / "test", subset="main", split="test")) == ["9"]
    assert answers(found(tmp_path / "socratic", subset="socratic", revision=COMMIT)) == ["5"]


def test_the_default_subset_is_taken_and_several_without_one_must_be_named(hub: Hub, tmp_path: Path) -> None:
    assert refused(tmp_path)[0] == (
        "spec.tasks.dataset: data set openai/gsm8k has subsets main, socratic and no default; name one as subset"
    )
    hub.files["openai/gsm8k"]["README.md"] = README.replace(b"name: socratic", b"name: socratic\n  default: true")
    assert answers(found(tmp_path / "default")) == ["5"]


def test_without_a_readme_a_subset_is_a_folder(hub: Hub, tmp_path: Path) -> None:
    del hub.files["openai/gsm8k"]["README.md"]
    assert answers(found(tmp_path, subset="main")) == ["1", "2", "3"]
    assert "split 'train' in several folders (main, socratic); name one as subset" in refused(tmp_path / "b")[0]
    assert "has no subset 'mian'; there is main, socratic" in refused(tmp_path / "c", subset="mian")[0]


def test_one_json_file_that_names_no_split_is_the_split_train(hub: Hub, tmp_path: Path) -> None:
    problem = {"problem": "What is 6 times 7?", "answer": "42", "solution": "6 * 7 = 42"}
    hub.files["agentica/deepscaler"] = {"README.md": b"# No header", "deepscaler.json": json.dumps([problem]).encode()}
    assert answers(found(tmp_path, "agentica/deepscaler")) == ["42"]


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        ({"subset": "mian"}, "data set openai/gsm8k has no subset 'mian'; there is main, socratic"),
        ({"subset": "main", "split": "dev"}, "subset 'main', has no split 'dev'; there is train, test"),
        (
            {"subset": "main", "revision": "v7"},
            "data set openai/gsm8k has no revision 'v7': give a branch, tag or commit",
        ),
        (
            {"repository": "openai/gsm9k"},
            "there is no data set openai/gsm9k on the hub, or prepare's token (HF_TOKEN) may not",
        ),
        (
            {"repository": "gated/set"},
            "data set gated/set is gated: ask for access on its page, and give prepare a token",
        ),
        (
            {"repository": "no/access"},
            "the hub refuses with status 403: check huggingFace, and prepare's token (HF_TOKEN)",
        ),
        ({"repository": "a/b/c/d"}, "'a/b/c/d' is no name of a repository; write owner/name"),
    ],
)
def test_a_mistake_of_the_manifest_is_one_line_and_for_good(
    hub: Hub, tmp_path: Path, dataset: dict[str, str], text: str
) -> None:
    hub.problems |= {"gated/set": (403, "GatedRepo"), "no/access": (403, "")}
    said, passing = refused(tmp_path, **dataset)
    assert text in said
    assert not passing


def test_a_file_that_the_hub_has_lost_and_a_readme_that_is_no_yaml_are_said(hub: Hub, tmp_path: Path) -> None:
    hub.lost.add("main/train-00001-of-00002.parquet")
    assert "it lists a file that it does not have; give another revision" in refused(tmp_path, subset="main")[0]
    hub.files["openai/gsm8k"]["README.md"] = b"---\n\tconfigs: [\n---\n"
    assert "README.md of the data set has a header that is not YAML" in refused(tmp_path / "b", subset="main")[0]
    hub.files["openai/gsm8k"]["README.md"] = README.replace(b"main/train-*", b"gone/train-*")
    assert "subset 'main', names files gone/train-* that it does not have" in refused(tmp_path / "c", subset="main")[0]


def test_a_hub_that_does_not_answer_may_be_tried_again(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.problems["busy/set"] = (503, "")
    assert refused(tmp_path, "busy/set")[1]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    said, passing = refused(tmp_path / "b")
    assert said.startswith("spec.tasks.dataset: cannot get the data set openai/gsm8k at revision main: ")
    assert passing


@pytest.mark.parametrize(
    ("status", "away"), [(503, True), (429, True), (401, False), (404, False), (None, True), (0, False)]
)
def test_a_hub_that_is_away_is_told_from_a_mistake_whatever_an_error_is_wrapped_in(
    status: int | None, away: bool
) -> None:
    request = httpx2.Request("GET", "https://hub.example.org")
    inner: Exception = ValueError("a mistake") if status == 0 else httpx2.ConnectTimeout("slow", request=request)
    if status:
        inner = HfHubHTTPError("no", response=httpx2.Response(status, request=request))
    outer = FileNotFoundError("it is nowhere")
    outer.__cause__ = inner
    assert is_away(outer) == away
