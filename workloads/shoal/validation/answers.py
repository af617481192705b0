"""What became of an accepted file's answers: counts for the orchestrator, and samples where no group carries signal.

In: the file, what is known of the run, the rewards that count. Out: `FileAnswers`. Called by `judge` for files of training steps. Costs one decoding
of each answer that is not right; a healthy file has no samples, so that its verdict grows by about 150 bytes.
"""

from collections.abc import Sequence

from shoal.contracts.answers import MOST_SAMPLES, SAMPLE_CHARACTERS, AnswerSample, FileAnswers, TurnFaults
from shoal.contracts.rollouts import Rollout
from shoal.contracts.verdicts import RowReward
from shoal.environments.tokens import completion_text
from shoal.telemetry import get_logger
from shoal.text import plain
from shoal.validation.facts import Facts, File

LEFT_OUT = "\n[...]\n"


def file_answers(
    file: File, facts: Facts, rewards: Sequence[RowReward], turn_faults: TurnFaults | None = None
) -> FileAnswers:
    """Count the file's completions; `rewards` has one entry a row."""
    rows = file.rows[: facts.completions]
    given = [reward.task_reward for reward in rewards[: len(rows)]]
    groups = [given[at : at + facts.group_size] for at in range(0, len(given), facts.group_size)]
    scored = [[value for value in group if value is not None] for group in groups]
    return FileAnswers(
        rows=len(rows),
        right=sum(value == 1.0 for value in given),
        cut=sum(row.finish_reason == "length" for row in rows),
        unscorable=sum(value is None for value in given),
        unanswered=_unanswered(rows, given, facts),
        groups=len(groups),
        groups_right=sum(bool(group) and min(group) == 1.0 for group in scored),
        groups_wrong=sum(bool(group) and max(group) == 0.0 for group in scored),
        samples=_samples(rows, given, facts) if all(len(set(group)) < 2 for group in scored) else [],
        turn_faults=turn_faults,
    )


def _unanswered(rows: Sequence[Rollout], given: Sequence[float | None], facts: Facts) -> int | None:
    """Answers without a final one; what scores above 0 has one. None where the environment cannot tell, or fails: it must not cost a verdict."""
    has_answer = getattr(facts.environment, "has_answer", None)
    if has_answer is None:
        return None
    try:
        return sum(
            not value and not has_answer(facts.tasks[row.prompt_index], facts.scored_text(row))
            for row, value in zip(rows, given, strict=True)
        )
    except Exception as error:
        get_logger().warning("has_answer failed", environment=facts.environment.name, error=str(error)[:300])
        return None


def _samples(rows: Sequence[Rollout], given: Sequence[float | None], facts: Facts) -> list[AnswerSample]:
    """The first answer of the first groups."""
    return [
        AnswerSample(
            problem_id=plain(rows[at].problem_id, 250),
            prompt=sample_text(
                facts.tokenizer.decode(
                    list(rows[at].prompt_tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
                )
            ),
            answer=sample_text(_answer(rows[at], facts)),
            tokens=len(rows[at].completion_tokens),
            cut=rows[at].finish_reason == "length",
            task_reward=given[at],
        )
        for at in range(0, len(rows), facts.group_size)[:MOST_SAMPLES]
    ]


def _answer(row: Rollout, facts: Facts) -> str:
    return completion_text(facts.tokenizer, row.completion_tokens, facts.eos_token_ids)


def sample_text(text: str) -> str:
    """Beginning and end of a text, lines kept, control characters escaped; at most `SAMPLE_CHARACTERS`, escapes included."""
    if len(text) > SAMPLE_CHARACTERS:
        half = (SAMPLE_CHARACTERS - len(LEFT_OUT)) // 2
        text = text[:half] + LEFT_OUT + text[-half:]
    shown = "\n".join(plain(line, SAMPLE_CHARACTERS) for line in text.split("\n"))
    return shown if len(shown) <= SAMPLE_CHARACTERS else shown[: SAMPLE_CHARACTERS - 3] + "..."
