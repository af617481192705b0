"""Tasks of lm-evaluation-harness that ask math-verify: what it takes for equal though it is not is worth nothing there either."""

import json

import pytest

from shoal.rewards.harness import shared_harness_judge

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


def test_right_answers_are_worth_what_the_task_says() -> None:
    assert score(r"\frac{1}{2}", "0.5") == 1.0
    assert score("37", "36") == 0.0
