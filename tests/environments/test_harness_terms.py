"""Terms of a harness task are data that anybody may have written: what is malformed is unscorable, and the judge goes on; packages that no
digest pins are not there for scoring, installed or not.
"""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.contracts.tasks import Task
from shoal.environments import Score, Unscorable
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.datasets import BadDataset
from shoal.environments.harness import Harness
from shoal.environments.judgeable import fitting
from shoal.rewards.harness import HarnessJudge, NoValue
from shoal.rewards.harness.scoring import LEFT_OUT
from shoal.rewards.judging import NoReply

TERMS: dict[str, Any] = {
    "metric": "exact_match",
    "until": [],
    "filters": [{"function": "take_first"}],
    "target": "1",
}
MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"filters": ["take_first"]}, "filters is not a list of filters"),
    ({"filters": 3}, "filters is not a list of filters"),
    ({"filters": [{}]}, "filters is not a list of filters"),
    ({"filters": [{"function": ["take_first"]}]}, "filters is not a list of filters"),
    ({"metric": None}, "metric is no text"),
    ({"until": "\n"}, "until is not a list of texts"),
    ({"until": [1]}, "until is not a list of texts"),
    ({"process_results": ["lm_eval.tasks.aime.utils:process_results"]}, "process_results is no text"),
    ({"metric_function": {}}, "metric_function is no text"),
    ({"metric_arguments": [1]}, "metric_arguments is no mapping"),
    ({"document": {}}, "document is no text"),
    ({"target": datetime.date(2026, 1, 1)}, "the question is not JSON"),
]


def task_with(info: dict[str, Any]) -> Task:
    return Task.model_construct(
        problem_id="one", task_type="lm-eval", prompt="What is 1?", verification_info=info, metadata={}
    )


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HarnessJudge]:
    """Two processes on a machine that has a package called evaluate."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "evaluate.py").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        judge = HarnessJudge(workers=1)
    yield judge
    judge.close()


@pytest.mark.parametrize(("changes", "reason"), MALFORMED, ids=[str(changes) for changes, _ in MALFORMED])
def test_malformed_terms_are_unscorable_with_what_is_wrong(changes: dict[str, Any], reason: str) -> None:
    scored = Harness().score(task_with({**TERMS, **changes}), "1")
    assert isinstance(scored, Unscorable)
    assert scored.reason.startswith("task one: ")
    assert reason in scored.reason


def test_after_malformed_terms_the_next_answer_is_scored() -> None:
    for changes, _ in MALFORMED:
        Harness().score(task_with({**TERMS, **changes}), "1")
    assert Harness().score(task_with(TERMS), "1") == Score(1.0, "exact_match is 1")


def test_a_question_that_raises_costs_the_pool_no_process(lone: HarnessJudge) -> None:
    pool = lone._judges
    for _ in range(3):  # one more than there are processes
        with pytest.raises(TypeError, match="unhashable"):
            pool.ask([TERMS, "1"], loads=["not hashable"])
        assert pool._free.qsize() == 2
    assert isinstance(pool.ask([{1, 2}, "1"]), NoReply)
    assert lone.value(TERMS, "1") == 1.0


def test_rows_that_cannot_be_scored_are_left_out_of_a_data_set() -> None:
    fit, unfit = task_with(TERMS), task_with({**TERMS, "filters": ["take_first"]})
    found = fitting([unfit, fit, unfit], Harness(), None)
    assert found.tasks == [fit]
    assert found.refused.counts == {"cannot be judged by environment 'lm-eval'": 2}


def test_an_environment_that_raises_for_a_row_leaves_it_out_with_the_reason() -> None:
    class Raises(Arithmetic):
        def score(self, task: Task, completion: str) -> Score | Unscorable:
            raise KeyError("answer")

    with pytest.raises(BadDataset, match=r"the first: task add-.*: it cannot be scored: KeyError: 'answer'"):
        fitting(Raises().tasks(2, 0), Raises(), None)


def test_scoring_has_no_package_that_the_digest_does_not_pin_though_it_is_installed(lone: HarnessJudge) -> None:
    found = lone.value({**TERMS, "metric_function": "lm_eval.tasks.noticia.utils:rouge1"}, "1")
    assert isinstance(found, NoValue)
    assert found.reason == "it is scored with evaluate, which is not a part of the environment lm-eval"


def test_what_the_lock_leaves_out_of_the_harness_is_left_out_of_scoring() -> None:
    text = (Path(__file__).parents[2] / "requirements" / "overrides.txt").read_text()
    after = text.partition("# What lm_eval asks for")[2].partition("\n#")[0].splitlines()[1:]
    names = [line.partition(";")[0].strip() for line in after if line]
    modules = {{"scikit-learn": "sklearn"}.get(name, name.replace("-", "_")) for name in names}
    assert "rouge_score" in modules
    assert modules <= LEFT_OUT
