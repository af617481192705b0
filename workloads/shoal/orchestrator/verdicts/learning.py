"""Whether a run can learn: the newest accepted groups, what became of their answers, and why none carries signal. Pure.

In: accepted verdicts, one by one. Out: `LearningProgress` for `GET /v1/run`, metrics and the run's condition `Learning`. Memory and time are those of
the newest `WINDOW_GROUPS` groups whatever the run's length; after a restart `recovery` reads their verdicts again, at most `WINDOW_GROUPS` objects.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.contracts.answers import (
    MOST_SAMPLES,
    AnswerSample,
    CannotLearn,
    FileAnswers,
    LearningProgress,
    TurnFaults,
    together,
)
from shoal.contracts.recipe import Recipe
from shoal.contracts.verdicts import Verdict
from shoal.text import percent

WINDOW_GROUPS = 64
"""Newest groups that are looked at."""
TELLING_GROUPS = 32
"""Of this number of groups without one that carries signal, at most 9 % carry signal with 95 % confidence (0.91^32 = 0.05)."""
MOST_CHARACTERS = 600
"""Of the message (`LearningProgress.message`)."""
MOST = 0.5
"""A share of answers or groups from which on it is named as the cause."""

ADVICE: dict[CannotLearn, str] = {
    "AnswersCutOff": "raise sampling.maxCompletionTokens and recipe.maxSequenceLength, or ask for shorter answers",
    "NoFinalAnswer": "look at the samples; change the prompt, or teach the form first by a run of mode SFT",
    "Unscorable": "look at the tasks' own answers with `shoal env preview`, and at the validators' logs",
    "AlwaysRight": "the tasks are too easy: start a run with harder ones, or with spec.tasks.offlineFilter",
    "AlwaysWrong": "the tasks are too hard: start a run with easier ones, with spec.tasks.offlineFilter, or after a run of mode SFT",
    "GroupsAlike": "raise sampling.temperature or recipe.groupSize, or start a run with other tasks",
}


@dataclass(frozen=True)
class JudgedAnswers:
    """One accepted file: its counts, and how many of its groups carry signal."""

    answers: FileAnswers
    with_signal: int


class AnswerWindow:
    """The newest accepted files of training steps. One thread adds; readers take a copy."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[str, str], JudgedAnswers] = OrderedDict()

    def add(self, verdict: Verdict, with_signal: int) -> None:
        """Take in an accepted file once; what is older than `WINDOW_GROUPS` groups goes. Verdicts of older validators say nothing."""
        if verdict.answers is None:
            return
        self._files.setdefault((verdict.node, verdict.sha256), JudgedAnswers(verdict.answers, with_signal))
        while len(self._files) > 1 and self.groups - next(iter(self._files.values())).answers.groups >= WINDOW_GROUPS:
            self._files.popitem(last=False)

    def files(self) -> list[JudgedAnswers]:
        """Oldest first."""
        return list(self._files.values())

    @property
    def groups(self) -> int:
        """Groups of all its files."""
        return sum(each.answers.groups for each in self._files.values())


def fewest_groups(recipe: Recipe) -> int:
    """Groups without signal that tell: fewer only where a step stops sampling before."""
    return min(TELLING_GROUPS, recipe.sampling_cap * recipe.prompts_per_step)


def learning_of(files: Sequence[JudgedAnswers], fewest: int) -> LearningProgress:
    """What the newest files say. A cause is only named where at least `fewest` groups were judged and none carries signal."""
    groups, rows = (sum(getattr(each.answers, name) for each in files) for name in ("groups", "rows"))
    if not groups:
        return LearningProgress(groups=0, message="no answers were judged yet")
    known = [each.answers.unanswered for each in files if each.answers.unanswered is not None]
    found = LearningProgress(
        groups=groups,
        groups_with_signal=sum(each.with_signal for each in files),
        groups_right=sum(each.answers.groups_right for each in files) / groups,
        groups_wrong=sum(each.answers.groups_wrong for each in files) / groups,
        right=sum(each.answers.right for each in files) / rows,
        cut=sum(each.answers.cut for each in files) / rows,
        unscorable=sum(each.answers.unscorable for each in files) / rows,
        unanswered=sum(known) / rows if len(known) == len(files) else None,
        samples=_samples(files),
    )
    decided = bool(found.groups_with_signal) or groups >= fewest
    reason = _reason(found) if decided and not found.groups_with_signal else None
    faults = together(each.answers.turn_faults for each in files)
    return found.model_copy(update={"decided": decided, "reason": reason, "message": _message(found, reason, faults)})


def _reason(found: LearningProgress) -> CannotLearn:
    causes: tuple[tuple[CannotLearn, float], ...] = (
        ("Unscorable", found.unscorable),
        ("AnswersCutOff", found.cut),
        ("NoFinalAnswer", found.unanswered or 0.0),
        ("AlwaysRight", found.groups_right),
        ("AlwaysWrong", found.groups_wrong),
    )
    return next((name for name, share in causes if share >= MOST), "GroupsAlike")


def _message(found: LearningProgress, reason: CannotLearn | None, faults: TurnFaults | None) -> str:
    """The shares in words, with a reason what to do, and what is wrong with the environment even where the rest carries signal."""
    shares = [
        f"{percent(found.right)} of answers right",
        f"{percent(found.cut)} cut off at the limit",
        *([f"{percent(found.unanswered)} without a final answer"] if found.unanswered is not None else []),
        f"{percent(found.unscorable)} not scorable",
        f"groups always right {percent(found.groups_right)}, always wrong {percent(found.groups_wrong)}",
    ]
    how_many = str(found.groups_with_signal) if found.groups_with_signal else "none"
    told = f"of the last {found.groups} groups {how_many} {'carry' if found.groups_with_signal > 1 else 'carries'} signal: {', '.join(shares)}"
    advice = [ADVICE[reason]] if reason is not None and not (reason == "Unscorable" and faults is not None) else []
    return "; ".join([told, *advice, *([faults.text] if faults is not None else [])])[:MOST_CHARACTERS]


def _samples(files: Sequence[JudgedAnswers]) -> list[AnswerSample]:
    """The newest ones."""
    return [sample for each in reversed(files) for sample in each.answers.samples][:MOST_SAMPLES]
