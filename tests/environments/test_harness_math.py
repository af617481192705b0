"""Tasks of lm-evaluation-harness that ask math-verify: what it takes for equal though it is not is worth nothing there either."""

import json

import pytest

from shoal.rewards.harness import NoValue, shared_harness_judge

PROCESS_RESULTS = "lm_eval.tasks.leaderboard.math.utils:process_results"


def score(gold: str, answer: str) -> object:
    document = {"problem": "p", "solution": rf"So it is $\boxed{{{gold}}}$.", "answer": gold}
    terms = {
        "metric": "exact_match", "until": [], "filters": [{"function": "take_first"}],
        "process_results": PROCESS_RESULTS, "document": json.dumps(document),
    }  # fmt: skip
    said = f"Final Answer: The final answer is ${answer}$. I hope it is correct."
    return shared_harness_judge().value(terms, said)


@pytest.mark.parametrize("gold", ["37", r"\frac{1}{2}", r"2\sqrt{2}", r"\pi"])
def test_an_infinity_is_no_answer_to_every_question(gold: str) -> None:
    for answer in (r"\max(\infty,37)", r"|\infty|", r"\sqrt{\infty}", r"\infty!"):
        assert score(gold, answer) == 0.0, answer
    assert score(gold, gold) == 1.0


@pytest.mark.parametrize(
    "name",
    [
        "lm_eval.tasks.score.math.utils_math:process_results",
        "lm_eval.tasks.longproc.metrics:process_results",
        "lm_eval.tasks.cruxeval.utils:process_results",
    ],
)
def test_a_task_that_would_run_the_answer_as_a_program_is_not_scored(name: str) -> None:
    """`eval` in the process that scores the answers of all others: one of them would decide what they are worth."""
    terms = {
        "metric": "exact_match", "until": [], "filters": [{"function": "take_first"}], "process_results": name, "document": "{}",
    }  # fmt: skip
    found = shared_harness_judge().value(terms, "__import__('sys').modules")
    assert isinstance(found, NoValue)
    assert "evaluates answers as programs" in found.reason


def test_no_answer_wins_equations_without_a_solution_or_is_too_large_to_be_judged() -> None:
    for gold, answer in (("x^2=-1", r"\emptyset"), ("37", r"5+32\frac{2z}{2z}"), ("37", "2^{13!}"), ("37", "(99^4)!")):
        assert score(gold, answer.replace("z", r"((\sqrt{2}+\sqrt{3})^2-5-2\sqrt{6})")) == 0.0, answer


def test_right_answers_are_worth_what_the_task_says() -> None:
    assert score(r"\frac{1}{2}", "0.5") == 1.0
    assert score("37", "36") == 0.0
