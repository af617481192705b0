"""lm-evaluation-harness as an environment: prompts and values are the harness's own, terms are data, what cannot be scored or pinned is refused."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness_files import SUMS, write_harness_task
from samples import run_config
from shoal import environments
from shoal.contracts.evaluation import Benchmark, BenchmarkTasks
from shoal.contracts.task_table import read_tasks, write_tasks
from shoal.contracts.tasks import Task
from shoal.environments import BadEnvironment, Score, Unscorable
from shoal.environments.harness import Harness
from shoal.environments.harness_import import FILE_BUILDERS, _leaves, documents
from shoal.environments.harness_names import BadHarnessTask, HarnessTask, near
from shoal.environments.math import Math
from shoal.environments.probe import HOSTILE
from shoal.environments.task_source import BadTaskSource, benchmark_tasks
from shoal.inference.evaluation.record import of_environments
from shoal.inference.evaluation.sampling import CannotEvaluate, EvaluationRequest
from shoal.rewards.harness import HarnessJudge, NoValue, shared_harness_judge
from shoal.rewards.harness.scoring import answer_of

FUNCTION = "!function lm_eval.tasks.aime.utils.process_results"
REVISION = "740312add88f781978c0658806c59bfc2815b9a4"
ANSWERS = (
    "10 and 12 are 22.\n#### 22", "#### 22", "#### 22.", "#### 22,", "#### 2,2", "#### 21 or 22", "so 22", "22 or 23", "#### ", "", " ", "####22",
    "#### 22\nQuestion: What?\n#### 5", "#### 5<|im_end|>#### 22", "#### ٢٢", "$22", "No.",
)  # fmt: skip


def made(folder: Path, **changes: Any) -> Harness:
    """An environment of its own: `load` would keep the first task of a folder's name."""
    return Harness(write_harness_task(folder, changes).removeprefix("lm-eval:"))


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> tuple[Harness, list[Task]]:
    environment = made(tmp_path_factory.mktemp("sums"))
    return environment, environment.tasks(6, 0)


def refusal(folder: Path, **changes: Any) -> str:
    with pytest.raises(BadHarnessTask) as caught:
        made(folder, **changes).tasks(1, 0)
    return str(caught.value)


def test_documents_become_tasks_with_the_prompt_that_the_harness_renders(sums: tuple[Harness, list[Task]]) -> None:
    environment, tasks = sums
    assert [task.problem_id for task in tasks] == [f"made_sums-{number}" for number in range(6)]
    shown = "Question: What is 1 plus 3?\nAnswer: #### 4\n\nQuestion: What is 1 plus 0?\nAnswer: #### 1\n\n"
    assert environment.prompt(tasks[0], None) == f"{shown}Question: What is 10 plus 12?\nAnswer:"
    asked = environment.prompt(tasks[0], 2000)
    assert asked == f"Think for 2000 tokens before giving a response.\n\n{shown}Question: What is 10 plus 12?\nAnswer:"
    assert environment.task_count() == 6


def test_the_same_name_gives_the_same_tasks_and_a_seed_chooses_some(tmp_path: Path) -> None:
    first, second = made(tmp_path), made(tmp_path)
    assert first.tasks(6, 1) == second.tasks(6, 2)
    assert first.tasks(3, 1) == second.tasks(3, 1)
    assert len({tuple(task.problem_id for task in first.tasks(3, seed)) for seed in range(8)}) > 1
    with pytest.raises(ValueError, match="7 tasks requested; it has 6 documents"):
        first.tasks(7, 0)


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("#### 22", 1.0),
        ("10 and 12 are 22.\n#### 22", 1.0),
        ("#### 23", 0.0),
        ("22", 0.0),
        ("#### 22 Question: #### 5", 1.0),
        ("<|im_end|>#### 22", 0.0),
        ("<think>#### 5</think>\n#### 22", 1.0),
        ("<think>#### 22</think> no", 0.0),
    ],
)
def test_an_answer_is_worth_what_filter_and_metric_say(
    sums: tuple[Harness, list[Task]], completion: str, reward: float
) -> None:
    environment, tasks = sums
    scored = environment.score(tasks[0], completion)
    assert scored == Score(reward, f"exact_match is {reward:g}")


@pytest.mark.parametrize("name", ["strict-match", "flexible-extract"])
def test_values_are_those_of_the_harness_itself(tmp_path: Path, name: str) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import ConfigurableTask

    environment = Harness(write_harness_task(tmp_path).removeprefix("lm-eval:") + f",exact_match,{name}")
    tasks = environment.tasks(6, 0)[:2]
    files = {split: str(tmp_path / f"{split}.jsonl") for split in ("test", "train")}
    theirs = ConfigurableTask(
        config={**SUMS, "dataset_kwargs": {"data_files": files, "cache_dir": str(tmp_path / "cache")}}
    )
    ensemble = next(each for each in theirs._filters if each.name == name)
    seen = set()
    for task in tasks:
        document = theirs.eval_docs[int(task.problem_id.rpartition("-")[2])]
        for completion in ANSWERS:
            answer = answer_of(completion, task.verification_info["until"])
            asked = Instance("generate_until", document, (), 0, resps=[answer])
            ensemble.apply([asked])
            wanted = theirs.process_results(document, [asked.filtered_resps[name]])["exact_match"]
            scored = environment.score(task, completion)
            assert isinstance(scored, Score)
            assert scored.task_reward == wanted, completion
            seen.add(wanted)
    assert seen == {0.0, 1.0}


def test_several_targets_are_right_each(tmp_path: Path) -> None:
    documents = [{"question": "A colour?", "answer": ["red", "blue"]}] * 3
    folder = tmp_path / "many"
    name = write_harness_task(
        folder, {"doc_to_target": "answer", "filter_list": None, "num_fewshot": 0, "metric_list": [{"metric": "exact_match"}]}, documents
    )  # fmt: skip
    environment = Harness(name.removeprefix("lm-eval:"))
    (task,) = environment.tasks(1, 0)
    rewards = [environment.score(task, answer).task_reward for answer in ("red", "blue", "green", "red blue")]
    assert rewards == [1.0, 1.0, 0.0, 0.0]


def test_a_function_of_the_package_scores_with_the_document_by_its_name(tmp_path: Path) -> None:
    environment = made(tmp_path, process_results=FUNCTION, filter_list=None, doc_to_target="{{answer.split(' ')[-1]}}")
    (task, *_) = environment.tasks(6, 0)
    info = task.verification_info
    assert info["process_results"] == "lm_eval.tasks.aime.utils:process_results"
    assert json.loads(info["document"])["question"] == "What is 10 plus 12?"
    wanted = json.loads(info["document"])["answer"]
    right, wrong = environment.score(task, rf"So \boxed{{{wanted}}}"), environment.score(task, r"\boxed{5}")
    assert (right, wrong) == (Score(1.0, "exact_match is 1"), Score(0.0, "exact_match is 0"))


@pytest.mark.parametrize(
    "name", ["os:system", "shoal.rewards.harness.worker:main", "lm_eval.tasks:no-name", "lm_eval.defaults:nothing", ":"]
)
def test_a_task_table_names_functions_of_the_package_and_no_others(sums: tuple[Harness, list[Task]], name: str) -> None:
    environment, (task, *_) = sums
    info = {**task.verification_info, "process_results": name, "document": "{}"}
    scored = environment.score(task.model_copy(update={"verification_info": info}), "#### 22")
    assert isinstance(scored, Unscorable)
    assert "the installed lm_eval" in scored.reason


@pytest.mark.parametrize("completion", HOSTILE)
def test_any_text_is_scored_and_none_of_these_is_right(sums: tuple[Harness, list[Task]], completion: str) -> None:
    environment, (task, *_) = sums
    scored = environment.score(task, completion)
    assert isinstance(scored, Score)
    assert scored.task_reward == 0.0


@pytest.fixture(scope="module")
def hurried() -> Iterator[HarnessJudge]:
    judge = HarnessJudge(workers=1, question_seconds=1.0)
    yield judge
    judge.close()


def test_a_completion_made_for_a_pattern_that_does_not_end_is_nobodys_zero_and_the_next_one_is_scored(
    hurried: HarnessJudge,
) -> None:
    steps = [{"function": "regex", "regex_pattern": "(a+)+$"}, {"function": "take_first"}]
    terms = {"metric": "exact_match", "until": [], "filters": steps, "target": "aa"}
    began = time.monotonic()
    assert hurried.value(terms, "a" * 60 + "b") == NoValue("scoring did not end within 1 s of CPU time")
    assert time.monotonic() - began < 60
    assert hurried.value(terms, "aa") == 1.0


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        ({"metric": "no_such"}, "has no metric 'no_such'"),
        ({"metric": "bleu"}, "a score is a number from 0 to 1"),
        ({"filters": [{"function": "no_such"}]}, "no_such"),
        ({"process_results": "lm_eval.tasks.aime.utils:process_results", "document": "{}"}, "StopIteration"),
        ({"document": "{"}, "JSONDecodeError"),
    ],
)
def test_what_the_task_cannot_score_is_no_value_with_the_reason(
    hurried: HarnessJudge, terms: dict[str, Any], reason: str
) -> None:
    whole = {"metric": "exact_match", "until": [], "filters": [{"function": "take_first"}], "target": "1", **terms}
    found = hurried.value(whole, "1")
    assert isinstance(found, NoValue)
    assert reason in found.reason


def test_a_task_survives_the_task_table_and_is_scored_from_it_alone(
    sums: tuple[Harness, list[Task]], tmp_path: Path
) -> None:
    (again, *_) = read_tasks(write_tasks(sums[1]))
    assert again == sums[1][0]
    elsewhere = Harness(f"{tmp_path}/not-there.yaml")
    scored = elsewhere.score(again, "#### 22")
    assert isinstance(scored, Score)
    assert scored.task_reward == 1.0


def test_a_benchmark_without_a_count_has_all_documents(tmp_path: Path) -> None:
    name = write_harness_task(tmp_path)
    benchmark = Benchmark(name="sums", tasks=BenchmarkTasks(environment=name))
    assert len(benchmark_tasks(run_config(), benchmark, environments.load(name), tmp_path).tasks) == 6
    four = Benchmark(name="sums", tasks=BenchmarkTasks(environment=name, count=4))
    assert len(benchmark_tasks(run_config(), four, environments.load(name), tmp_path).tasks) == 4


METRICS: dict[str, Any] = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"output_type": "multiple_choice"}, "its output_type is multiple_choice; allowed: tasks of output_type generate_until"),
    ({"output_type": "loglikelihood"}, "which sampled answers do not have"),
    ({"unsafe_code": True}, "it runs answers as programs (unsafe_code)"),
    ({"repeats": 8}, "it scores 8 answers together (repeats)"),
    ({"doc_to_image": "picture"}, "it asks about images (doc_to_image)"),
    ({"custom_dataset": FUNCTION}, "which no revision pins"),
    ({"dataset_path": "openai/gsm8k"}, "its data set openai/gsm8k lies on a hub, where it may change: pin it as lm-eval:"),
    ({"dataset_kwargs": {"data_files": "https://example.test/a.jsonl"}}, "its dataset_kwargs name a URL, whose files no revision pins"),
    ({"dataset_path": "a/b", "dataset_kwargs": {"data_files": ["https://a.test/a"], "revision": "0" * 40}}, "its dataset_kwargs name a URL"),
    ({"dataset_path": "a/b", "dataset_kwargs": {"revision": "a-branch-whose-name-has-forty-characters"}}, "lies on a hub, where it may change"),
    ({"filter_list": ["take_first"]}, "its metrics, filters or stop texts are malformed: TypeError"),
    ({"dataset_path": None}, "it names no data set"),
    ({"dataset_kwargs": {"data_files": {"test": "/nowhere/a.jsonl"}}}, "its documents are not available: FileNotFoundError"),
    ({"doc_to_text": "{{no_such}}"}, "its documents are not available: UndefinedError"),
    ({"process_results": "!function own.score"}, "is not a function of the installed lm_eval: workers and validators run no other"),
    ({"metric_list": [{"metric": "bleu"}]}, "bleu is not a mean over documents"),
    ({"metric_list": [METRICS | {"metric": "ter", "higher_is_better": False}]}, "of ter less is better"),
    ({"metric_list": [METRICS | {"metric": "rouge", "hf_evaluate": True}]}, "the code of its metric rouge lies on a hub"),
    ({"metric_list": [METRICS | {"metric": "no_such"}]}, "the code of its metric no_such lies on a hub"),
    ({"filter_list": [{"name": "two", "filter": [{"function": "take_first_k", "k": 2}]}]}, "an empty answer cannot be scored: AssertionError"),
    ({"task": None}, "it cannot be loaded: ValueError"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=[reason[:40] for _, reason in REFUSED])
def test_what_cannot_be_asked_scored_or_pinned_is_refused_with_what_is_allowed(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    (tmp_path / "own.py").write_text("def score(document, results):\n    return {'exact_match': 1}\n")
    assert reason in refusal(tmp_path, **changes)


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (",f1", "it has no metric 'f1'; allowed: exact_match"),
        (",exact_match,loose", "it has no filter 'loose'; allowed: strict-match, flexible-extract"),
        (f"@{REVISION}", "files of this machine, which have no revision: leave 740312ad... away"),
    ],
)
def test_a_metric_a_filter_and_a_revision_that_do_not_fit_are_refused(tmp_path: Path, ending: str, reason: str) -> None:
    with pytest.raises(BadHarnessTask) as caught:
        Harness(write_harness_task(tmp_path).removeprefix("lm-eval:") + ending).tasks(1, 0)
    assert reason in str(caught.value)


@pytest.mark.parametrize("path", ["json", "webdataset"])
@pytest.mark.parametrize("arguments", [None, {"data_files": {"test": "https://example.test/a.jsonl"}}])
def test_a_revision_is_refused_where_it_pins_nothing(
    tmp_path: Path, path: str, arguments: dict[str, Any] | None
) -> None:
    name = write_harness_task(tmp_path, {"dataset_path": path, "dataset_kwargs": arguments})
    with pytest.raises(
        BadHarnessTask, match=r"files of this machine, which have no revision|a URL, whose files no revision pins"
    ):
        Harness(f"{name.removeprefix('lm-eval:')}@{REVISION}").tasks(1, 0)


def test_a_folder_of_the_working_directory_is_not_taken_for_a_data_set_of_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openai" / "gsm8k").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    name = write_harness_task(tmp_path / "task", {"dataset_path": "openai/gsm8k", "dataset_kwargs": None})
    with pytest.raises(BadHarnessTask, match="files of this machine, which have no revision"):
        Harness(f"{name.removeprefix('lm-eval:')}@{REVISION}").tasks(1, 0)


def test_a_hub_that_is_away_is_no_fault_of_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_harness_task(tmp_path / "task", {"dataset_path": "openai/gsm8k", "dataset_kwargs": None})
    made = Harness(f"{name.removeprefix('lm-eval:')}@{REVISION}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_CACHE_HOME", tmp_path)
    benchmark = Benchmark(name="b", tasks=BenchmarkTasks(environment=made.name))
    with pytest.raises(BadTaskSource, match="its documents are not available: ConnectionError") as caught:
        benchmark_tasks(run_config(), benchmark, made, tmp_path)
    assert caught.value.passing


def test_every_file_builder_of_the_data_sets_library_is_known() -> None:
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    assert set(_PACKAGED_DATASETS_MODULES) <= FILE_BUILDERS


def test_a_name_has_a_task_and_may_have_metric_filter_and_revision() -> None:
    assert HarnessTask.parse("gsm8k") == HarnessTask("gsm8k")
    assert HarnessTask.parse(f"gsm8k,exact_match,strict-match@{REVISION}") == HarnessTask(
        "gsm8k", "exact_match", "strict-match", REVISION
    )
    for bad in ("", "a,b,c,d", "a b", "a,", f"@{REVISION}", "gsm8k@main", "gsm8k@"):
        with pytest.raises(BadEnvironment, match=r"lm-eval:.* allowed: TASK\[,METRIC\[,FILTER\]\]\[@REVISION\]"):
            environments.load(f"lm-eval:{bad}")


def test_an_environment_without_parts_has_none_to_name_and_the_harness_wants_one() -> None:
    with pytest.raises(
        BadEnvironment, match="environment 'arithmetic' has no parts to name: write 'arithmetic' without"
    ):
        environments.load("arithmetic:sums")
    with pytest.raises(ValueError, match=r"a task must be named: lm-eval:TASK"):
        environments.load("lm-eval").tasks(1, 0)


def test_an_unknown_task_is_refused_with_the_names_that_are_near() -> None:
    assert near("gsm8k_coot", ["gsm8k", "gsm8k_cot", "mmlu"]) == "; near are gsm8k_cot, gsm8k"
    assert near("zzz", ["gsm8k", "mmlu"]) == "; none of 2 is similar"
    with pytest.raises(BadHarnessTask, match="lm-evaluation-harness has no such task; near are gsm8k_cot"):
        list(_leaves("gsm8k_coot", {"gsm8k_cot": None}))


def test_a_group_is_its_tasks_unless_it_changes_them() -> None:
    from lm_eval.tasks._index import Entry, Kind

    def group(name: str, **fields: Any) -> Entry:
        return Entry(name, Kind.GROUP, None, {"group": name, **fields})

    index = {
        "one": Entry("one", Kind.TASK, Path("/one.yaml")),
        "two": Entry("two", Kind.TASK, Path("/two.yaml")),
        "marked": Entry("marked", Kind.TAG, None, tags={"two", "one"}),
        "both": group("both", task=["two", "one"], aggregate_metric_list=[{"metric": "exact_match"}]),
        "nested": group("nested", task=["both"]),
        "fewer shots": group("fewer shots", task=["one"], num_fewshot=0),
        "inline": group("inline", task=[{"task": "one", "num_fewshot": 0}]),
        "round": group("round", task=["round"]),
    }
    assert [name for name, _ in _leaves("marked", index)] == ["one", "two"]
    assert list(_leaves("nested", index)) == [("two", Path("/two.yaml")), ("one", Path("/one.yaml"))]
    for bad in ("fewer shots", "inline"):
        with pytest.raises(
            BadHarnessTask, match="the group changes its tasks or defines its own; name one of its tasks"
        ):
            list(_leaves(bad, index))
    with pytest.raises(BadHarnessTask, match="the group is a part of itself"):
        list(_leaves("round", index))


def test_digests_go_by_the_task_and_by_the_packages_that_score(tmp_path: Path) -> None:
    one, two = (environments.digest(Harness(name)) for name in ("gsm8k", f"gsm8k@{REVISION}"))
    assert one != two
    assert {"lm-eval", *Math.requires} == set(Harness.requires)


def test_shoal_eval_says_in_one_line_what_is_wrong_with_a_task(tmp_path: Path) -> None:
    name = write_harness_task(tmp_path / "task", {"output_type": "multiple_choice"})
    with pytest.raises(
        CannotEvaluate, match=r"^--env lm-eval:.*: lm-eval:made_sums: its output_type is multiple_choice"
    ):
        of_environments([name], None, EvaluationRequest(1, 1.0, 8))
    with pytest.raises(CannotEvaluate, match=r"--count 7: .* 7 tasks requested; it has 6 documents"):
        of_environments([write_harness_task(tmp_path / "other")], 7, EvaluationRequest(1, 1.0, 8))


@pytest.mark.soak
def test_tasks_groups_and_near_names_of_the_whole_package() -> None:
    judge = shared_harness_judge()
    with pytest.raises(BadHarnessTask, match=r"no such task; near are .*gsm8k_cot"):
        documents(HarnessTask("gsm8k_coot"), judge)
    with pytest.raises(
        BadHarnessTask, match="openai/gsm8k lies on a hub, where it may change: pin it as lm-eval:gsm8k@REVISION"
    ):
        documents(HarnessTask("gsm8k"), judge)
    with pytest.raises(BadHarnessTask, match="lies on a hub, where it may change: pin it as lm-eval:hendrycks_math@"):
        documents(HarnessTask("hendrycks_math"), judge)
    with pytest.raises(BadHarnessTask, match="its output_type is multiple_choice"):
        documents(HarnessTask("hellaswag"), judge)
    with pytest.raises(BadHarnessTask, match="unsafe_code"):
        documents(HarnessTask("humaneval"), judge)
