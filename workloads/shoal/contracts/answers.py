"""What became of answers: counts and samples of one accepted file, and of the newest files of a run. For whoever must see that a run cannot learn.

`FileAnswers` is part of a validator's verdict, `LearningProgress` of `GET /v1/run`; `TrainingRun.status` shows the same. Samples are a stranger's
text: at most `SAMPLE_CHARACTERS` each, and the validator has made control characters harmless.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import Contract, ShortText, unset

SAMPLE_CHARACTERS = 600
MOST_SAMPLES = 3

SampleText = Annotated[str, StringConstraints(max_length=2 * SAMPLE_CHARACTERS)]
CannotLearn = Literal["AnswersCutOff", "NoFinalAnswer", "Unscorable", "AlwaysRight", "AlwaysWrong", "GroupsAlike"]
"""Why no group carries signal, most telling first: a reason of the condition `Learning`."""


class AnswerSample(Contract):
    """One answer as the model saw its prompt and gave it, special tokens written out; what is longer has its middle left out."""

    problem_id: Annotated[str, StringConstraints(max_length=253)]
    prompt: SampleText
    answer: SampleText
    tokens: int = Field(ge=0, description="of the whole answer")
    cut: bool = Field(description="it ended at the length limit")
    task_reward: float | None = Field(default=None, ge=0.0, le=1.0, description="None: it could not be scored")


class TurnFaults(Contract):
    """Rows that are not scored because their environment's rewards of turns are not those of their episodes. Nobody's machine is at fault."""

    environment: ShortText
    rows: int = Field(ge=1)
    first: Annotated[str, StringConstraints(max_length=200)] = Field(description="what is wrong in the first of them")

    @property
    def text(self) -> str:
        """In words, with what to do."""
        rows = "1 row is" if self.rows == 1 else f"{self.rows} rows are"
        return (
            f"{rows} not scored because environment {self.environment} gives wrong rewards of turns (`turn_rewards`; {self.first}):"
            " check it with `shoal env check`"
        )


def together(faults: Iterable[TurnFaults | None]) -> TurnFaults | None:
    """Of several files; None where there are none."""
    found = [each for each in faults if each is not None]
    return found[0].model_copy(update={"rows": sum(each.rows for each in found)}) if found else None


class FileAnswers(Contract):
    """Counts over the completions of an accepted file, by its validator. Continuations are left out."""

    rows: int = Field(ge=1)
    right: int = Field(ge=0, description="with task reward 1")
    cut: int = Field(ge=0, description="ended at the length limit")
    unscorable: int = Field(ge=0)
    unanswered: int | None = Field(
        default=None, ge=0, description="without a final answer that could be judged; None: the environment cannot tell"
    )
    groups: int = Field(ge=1)
    groups_right: int = Field(ge=0, description="whose scored answers are all right")
    groups_wrong: int = Field(ge=0, description="whose scored answers are all wrong")
    samples: list[AnswerSample] = Field(
        default_factory=list, max_length=MOST_SAMPLES, description="of a file whose groups are all alike"
    )
    turn_faults: TurnFaults | None = Field(
        default=None, exclude_if=unset, description="of a run with credit by turns; None: none"
    )


class LearningProgress(Contract):
    """Whether the newest groups of a run carry signal, and what became of their answers."""

    groups: int = Field(ge=0, description="newest accepted groups that this is about")
    groups_with_signal: int = Field(default=0, ge=0)
    groups_right: float = Field(default=0.0, ge=0.0, le=1.0, description="share of groups whose answers are all right")
    groups_wrong: float = Field(default=0.0, ge=0.0, le=1.0, description="share of groups whose answers are all wrong")
    right: float = Field(default=0.0, ge=0.0, le=1.0, description="share of answers")
    cut: float = Field(default=0.0, ge=0.0, le=1.0, description="share of answers that ended at the length limit")
    unscorable: float = Field(default=0.0, ge=0.0, le=1.0, description="share of answers")
    unanswered: float | None = Field(
        default=None, ge=0.0, le=1.0, description="share of answers without a final one; None: not known"
    )
    reason: CannotLearn | None = Field(
        default=None, description="why the run cannot learn; None: it can, or too few groups"
    )
    decided: bool = Field(default=False, description="there are groups enough to tell")
    message: str = Field(default="", max_length=600)
    samples: list[AnswerSample] = Field(default_factory=list, max_length=MOST_SAMPLES)
