"""The arithmetic environment: the same tasks, prompts and scores on every machine, and a scorer nothing can upset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.contracts.task_table import read_tasks, write_tasks
from shoal.environments import Score, Unscorable, digest, length_suffix, load
from shoal.environments.arithmetic import Arithmetic, worked_addition

ENVIRONMENT = Arithmetic()
TASK = ENVIRONMENT.tasks(1, seed=3)[0]
operands = st.integers(10, 99)


def test_the_scratchpad_adds_units_first_and_carries() -> None:
    assert worked_addition(12, 34) == "<2+4+0=6,1+3+0=4>46"
    assert worked_addition(58, 67) == "<8+7+0=15,5+6+1=12>125"


def test_every_gold_answer_scores_one_and_every_answer_off_by_one_scores_zero() -> None:
    for task in ENVIRONMENT.tasks(8100, seed=0):
        gold = ENVIRONMENT.gold(task)
        scratchpad, answer = gold.split(">")
        assert ENVIRONMENT.score(task, gold).task_reward == 1.0
        assert ENVIRONMENT.score(task, f"{scratchpad}>{int(answer) + 1}").task_reward == 0.0


@pytest.mark.parametrize("spoil", ["{}0", "{} ", " {}", "0{}", "{}\n", "{}.", "+{}", ">", "", "the sum"])
def test_only_the_sum_itself_counts_as_an_answer(spoil: str) -> None:
    answer = TASK.verification_info["answer"]
    assert ENVIRONMENT.score(TASK, "<>" + answer).task_reward == 1.0
    assert ENVIRONMENT.score(TASK, "<>" + spoil.format(answer)).task_reward == 0.0


@given(st.text(max_size=2000))
def test_any_text_gets_a_score(text: str) -> None:
    scored = ENVIRONMENT.score(TASK, text)
    assert isinstance(scored, Score)
    assert scored.task_reward in (0.0, 1.0)


@pytest.mark.parametrize("answer", [None, 46, "", "4a", "٤٦"])
def test_a_task_without_a_usable_answer_is_unscorable_and_not_wrong(answer: object) -> None:
    broken = TASK.model_copy(update={"verification_info": {"answer": answer}})
    scored = ENVIRONMENT.score(broken, "46")
    assert isinstance(scored, Unscorable)
    assert TASK.problem_id in scored.reason
    assert "allowed: a decimal number" in scored.reason


def test_tasks_are_the_same_for_the_same_seed_without_repeats_and_survive_the_task_table() -> None:
    tasks = ENVIRONMENT.tasks(500, seed=7)
    assert tasks == ENVIRONMENT.tasks(500, seed=7) != ENVIRONMENT.tasks(500, seed=8)
    assert len({task.problem_id for task in tasks}) == 500
    assert read_tasks(write_tasks(tasks)) == tasks


@pytest.mark.parametrize("count", [0, -1, 8101])
def test_more_tasks_than_there_are_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=r"allowed: 1 to 8100"):
        ENVIRONMENT.tasks(count, seed=0)


def test_the_prompt_asks_for_a_length_in_the_papers_words() -> None:
    task = next(task for task in ENVIRONMENT.tasks(8100, seed=0) if task.problem_id == "add-12-34")
    assert ENVIRONMENT.prompt(task, 24) == "12+34= Think for 24 tokens before giving a response.\n"
    assert ENVIRONMENT.prompt(task, None) == "12+34=\n"


def test_a_target_length_below_one_token_is_refused() -> None:
    with pytest.raises(ValueError, match="target_length is 0; allowed: 1 or more tokens"):
        length_suffix(0)


def test_the_environment_is_found_by_its_entry_point_and_pinned_by_its_digest() -> None:
    assert isinstance(load("arithmetic"), Arithmetic)
    assert digest(load("arithmetic")) == digest(Arithmetic())
    assert len(digest(Arithmetic())) == 64
