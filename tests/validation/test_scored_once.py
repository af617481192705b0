"""Equal answers of a file are scored once, in little memory, and a machine's passing failure costs no row its reward."""

import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.contracts.tasks import Task
from shoal.contracts.validation import Validation
from shoal.environments import Score, Unscorable, scored_once
from shoal.environments.scored_once import AGAIN, SECOND_TRIES, ProgramTime, ScoredOnce
from shoal.validation.checks import reward

TASKS = [Task(problem_id=name, task_type="t", prompt="?", verification_info={}) for name in ("p0", "p1")]


class Scorer:
    """Stands where an environment scores: counts, and fails as often as told."""

    def __init__(self, failures: int = 0) -> None:
        self.asked: list[tuple[str, str]] = []
        self.failures = failures

    def score(self, task: Task, text: str) -> Score | Unscorable:
        self.asked.append((task.problem_id, text[:20]))
        if len(self.asked) <= self.failures:
            return Unscorable("no process to spare")
        return Score(float(text == "42"))


class Flaky(Scorer):
    """Programs that answer by what they should not see: the reward of `even` changes with each run, that of `42` is 1, of all else 0."""

    runs_programs = True

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds

    def score(self, task: Task, text: str) -> Score | Unscorable:
        self.asked.append((task.problem_id, text))
        return Score(float(text == "42" or (text == "even" and len(self.asked) % 2 == 0)), "", self.seconds)


def kept(scorer: Scorer) -> ScoredOnce:
    return ScoredOnce(cast(Any, scorer))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored_once, "PAUSE_SECONDS", 0.0)


def test_equal_answers_to_one_task_are_scored_once_and_to_two_tasks_twice() -> None:
    scorer = Scorer()
    scores = kept(scorer)
    assert [scores.reward(task, text) for task in TASKS for text in ("42", "42", "7", "\ud800")] == [1, 1, 0, 0] * 2
    assert scorer.asked == [(task.problem_id, text) for task in TASKS for text in ("42", "7", "\ud800")]


def rewards_of(scorer: "Scorer | Flaky", texts: list[str], claims: float | None = None) -> list[float | None]:
    """What a validator finds for a file whose rows decode to these texts."""
    rows = [
        SimpleNamespace(
            prompt_tokens=[1],
            completion_tokens=[number],
            prompt_index=0,
            target_length=None,
            task_reward=claims,
            length_penalty=None,
            reward=None,
        )
        for number in range(len(texts))
    ]
    facts = SimpleNamespace(
        prefixes=lambda rows: [0] * len(rows),
        scored_text=lambda row, _: texts[row.completion_tokens[0]],
        tokenizer=SimpleNamespace(decode=lambda ids, **_: texts[ids[0]]),
        eos_token_ids=frozenset({-1}),
        environment=scorer,
        tasks=TASKS,
        length_reward=None,
        turn_credit=False,
        is_claimed=lambda row: False,
        validation=Validation(program_seconds=100),
    )
    file = cast(Any, SimpleNamespace(rows=rows, job=SimpleNamespace(node="ab" * 32)))
    rewards = reward.score_rows(file, cast(Any, facts))
    finding = reward.check(file, cast(Any, facts), rewards)
    if claims is not None and isinstance(scorer, Flaky):
        assert finding is None  # whatever was claimed of a program
    return [row.task_reward for row in rewards]


def test_a_validator_scores_equal_rows_once_and_survives_one_failure_of_its_machine() -> None:
    scorer = Scorer(failures=1)
    assert rewards_of(scorer, ["42"] * 16) == [1.0] * 16
    assert len(scorer.asked) == 2


def test_an_answer_that_fails_twice_is_left_out_for_all_that_are_equal() -> None:
    scorer = Scorer(failures=2)
    assert rewards_of(scorer, ["42"] * 3 + ["7"]) == [None, None, None, 0.0]


def test_a_file_of_answers_that_cannot_be_scored_is_not_tried_again_for_ever() -> None:
    scorer = Scorer(failures=1000)
    assert rewards_of(scorer, [str(number) for number in range(100)]) == [None] * 100
    assert len(scorer.asked) == 100 + SECOND_TRIES


def test_what_failed_ahead_of_its_file_has_all_of_its_tries_with_it() -> None:
    scorer = Scorer(failures=2)
    scores = kept(scorer)
    for _ in range(2):
        scores.ahead(TASKS[0], "7")
    assert scores.reward(TASKS[0], "7") == 0.0
    scorer.failures = 1000
    for number in range(2 * SECOND_TRIES):
        scores.ahead(TASKS[1], str(number))
    scorer.failures = len(scorer.asked) + 1
    assert scores.reward(TASKS[1], "42") == 1.0, "no second try was used up"


def test_what_was_scored_ahead_is_not_scored_again() -> None:
    scorer = Scorer()
    scores = kept(scorer)
    scores.ahead(TASKS[0], "42")
    scores.ahead(TASKS[0], "42")
    assert scores.reward(TASKS[0], "42") == 1.0
    assert len(scorer.asked) == 1


def test_what_ran_into_its_limit_of_time_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored_once, "SLOW_SECONDS", 0.0)
    scorer = Scorer(failures=1)
    assert kept(scorer).reward(TASKS[0], "42") is None
    assert len(scorer.asked) == 1


def test_a_program_that_our_own_runs_disagree_about_is_left_out_and_nobody_is_rejected() -> None:
    assert rewards_of(Flaky(), ["even", "42", "7"], claims=1.0) == [None, 1.0, 0.0]


def test_a_wrong_claim_about_a_program_changes_nothing_and_is_looked_at_three_times() -> None:
    scorer = Flaky()
    assert rewards_of(scorer, ["42", "7", "7"], claims=0.0) == [1.0, 0.0, 0.0]
    assert [text for _, text in scorer.asked] == ["42", "7"] + ["42"] * AGAIN


def test_a_file_of_wrong_claims_is_looked_at_a_bounded_number_of_times() -> None:
    scorer = Flaky()
    assert rewards_of(scorer, [f"wrong {number}" for number in range(100)], claims=1.0) == [0.0] * 100
    assert len(scorer.asked) == 100 + AGAIN * SECOND_TRIES


def test_the_programs_of_a_file_share_one_budget_of_cpu_time() -> None:
    scorer = Flaky(seconds=30.0)
    texts = [f"program {number}" for number in range(48)]
    assert rewards_of(scorer, texts) == [0.0] * 4 + [None] * 44
    assert len(scorer.asked) == 4


def test_a_false_claim_takes_no_time_from_other_rows() -> None:
    """40 seconds a program of 100 in all: the third row has its run, and what was found first stands where no time is left to look again."""
    assert rewards_of(Flaky(seconds=40.0), ["42", "7", "8"], claims=1.0) == [1.0, 0.0, 0.0]
    assert rewards_of(Flaky(seconds=70.0), ["42", "7"], claims=0.0) == [1.0, 0.0]
    assert rewards_of(Flaky(seconds=120.0), ["42"], claims=0.0) == [1.0]


def test_a_judge_in_a_process_of_its_own_shares_that_budget() -> None:
    class Judged(Flaky):
        runs_programs = False
        judged_apart = True

    scorer = Judged(seconds=30.0)
    assert rewards_of(scorer, [f"answer {number}" for number in range(48)]) == [0.0] * 4 + [None] * 44
    assert len(scorer.asked) == 4


def test_a_spent_budget_leaves_out_what_takes_time_alone() -> None:
    class Both(Flaky):
        def part_of(self, task: Task) -> Scorer:
            return self if task.problem_id == "p0" else Scorer()

    scores = ScoredOnce(cast(Any, Both(seconds=60.0)), ProgramTime(100.0))
    assert [scores.reward(TASKS[0], text) for text in ("a", "b", "c")] == [0.0, 0.0, None]
    assert scores.reward(TASKS[1], "42") == 1.0


def test_texts_are_not_kept_however_long_a_token_is() -> None:
    scores = kept(Scorer())
    tracemalloc.start()
    try:
        for number in range(64):
            scores.reward(TASKS[0], f"\N{GRINNING FACE}{number}" + " " * 100_000)  # 400 kB in memory
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000
