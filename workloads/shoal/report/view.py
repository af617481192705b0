"""Turns snapshots into what a person sees: figures, rates, time left. Pure; drawn by `screen.py`, printed by `lines.py`.

`SnapshotHistory` gathers what one snapshot cannot tell: the metrics of all steps seen and the token counts of the last minute. `view_model(snapshot,
history)` is the whole decision of what is shown; the clock is the snapshot's own.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.contracts.answers import AnswerSample, LearningProgress
from shoal.contracts.protocol import RunProgress
from shoal.contracts.steps import StepMetrics
from shoal.report.snapshot import Part, Snapshot
from shoal.text import NONE, count, duration, number, percent, plain, sparkline

RATE_WINDOW_SECONDS = 60.0
"""Tokens per second are a mean over this long: files are accepted in lumps, a few seconds apart."""
ETA_STEPS = 10
"""The time left is taken from this many last steps: enough to smooth, few enough to follow a change."""


@dataclass
class SnapshotHistory:
    """Facts from earlier snapshots. `add` is to be called once for every snapshot, in order of time."""

    steps: dict[int, StepMetrics] = field(default_factory=dict)
    tokens: list[tuple[float, int]] = field(default_factory=list)

    def seed(self, steps: Iterable[StepMetrics]) -> None:
        """Put in steps that were trained before this program started."""
        self.steps.update({metrics.step: metrics for metrics in steps})

    def add(self, snapshot: Snapshot) -> None:
        progress = snapshot.progress
        if progress is None:
            return
        if progress.last_step is not None:
            self.steps[progress.last_step.step] = progress.last_step
        if self.tokens and progress.completion_tokens_accepted < self.tokens[-1][1]:
            self.tokens.clear()  # another orchestrator, which counts again
        self.tokens.append((snapshot.unix, progress.completion_tokens_accepted))
        oldest = snapshot.unix - RATE_WINDOW_SECONDS
        while len(self.tokens) > 2 and self.tokens[1][0] <= oldest:
            self.tokens.pop(0)

    def ordered(self) -> list[StepMetrics]:
        return [self.steps[step] for step in sorted(self.steps)]

    def tokens_per_second(self) -> float | None:
        """Completion tokens in accepted files per second over the window; None before two readings."""
        if len(self.tokens) < 2:
            return None
        (start, first), (end, last) = self.tokens[0], self.tokens[-1]
        return (last - first) / (end - start) if end > start else None


def eta_seconds(progress: RunProgress, steps: list[StepMetrics], now_unix: float) -> float | None:
    """Seconds until the last step is trained, from the pace of the last steps; None before two steps are known, 0 when complete.

    Only steps of the newest unbroken attempt count: a pause between two `shoal up` is not pace.
    """
    if progress.complete:
        return 0.0
    if not steps:
        return None
    recent = [metrics for metrics in steps if metrics.attempt == steps[-1].attempt][-(ETA_STEPS + 1) :]
    done = recent[-1].step - recent[0].step
    if done < 1:
        return None
    pace = (recent[-1].finished_unix - recent[0].finished_unix) / done
    remaining = progress.steps_total - 1 - recent[-1].step
    into_current = min(max(0.0, now_unix - recent[-1].finished_unix), pace)
    return max(0.0, remaining * pace - into_current)


@dataclass(frozen=True)
class PodRow:
    """One row of the table: a pod with its containers as (name, state) pairs."""

    name: str
    state: str
    containers: tuple[tuple[str, str], ...]
    restarts: int
    address: str
    note: str = ""


@dataclass(frozen=True)
class SampleRow:
    """One answer: a line about it, and the ends of prompt and answer as lines of text."""

    title: str
    prompt: tuple[str, ...]
    answer: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    """All that is shown, as text; nothing in it can move a cursor."""

    run: str
    headline: str
    waiting: str
    share_done: float
    rows: tuple[PodRow, ...]
    figures: tuple[tuple[str, str], ...]
    curves: tuple[tuple[str, str], ...]
    """(label, sparkline) over all steps."""
    rejects: str
    complete: bool
    answers: str = ""
    """What became of the newest answers; empty while none were judged."""
    cannot_learn: str = ""
    """Why the newest groups carry no signal, and what to do; empty while some do."""
    samples: tuple[SampleRow, ...] = ()
    """Answers of groups without signal, while the run cannot learn."""


_WORST_FIRST = ("failed", "waiting", "pending", "starting", "stopping", "ready", "done")


def _worst(states: Iterable[str]) -> str:
    def rank(state: str) -> int:
        return _WORST_FIRST.index(state) if state in _WORST_FIRST else 0

    return min(states, key=rank)


def pod_rows(parts: Iterable[Part], run: str) -> tuple[PodRow, ...]:
    """Parts grouped by pod, in the order given; the run's name is cut off the pod's, as it is the same in every row."""
    pods: dict[str, list[Part]] = {}
    for part in parts:
        pods.setdefault(part.pod, []).append(part)
    rows = []
    for pod, containers in pods.items():
        notes = [f"{part.container}: {part.message}".removeprefix(": ") for part in containers if part.message]
        notes += [
            f"{part.container} last exited {part.last_exit}"
            for part in containers
            if part.last_exit not in (None, 0) and not part.message
        ]
        rows.append(
            PodRow(
                name=plain(pod.removeprefix(f"{run}-"), 40),
                state=_worst(part.state for part in containers),
                containers=tuple((plain(part.container, 24), part.state) for part in containers if part.container),
                restarts=sum(part.restarts for part in containers),
                address=plain(containers[0].address, 40),
                note=plain("; ".join(notes), 80),
            )
        )
    return tuple(rows)


def waiting_for(snapshot: Snapshot) -> str:
    """The current activity, or the event that the run waits for, in one sentence: the most basic first. Empty when there is nothing to say."""
    progress = snapshot.progress
    if progress is not None and progress.complete:
        return ""
    if snapshot.stalled:
        return plain(snapshot.stalled, 1000)
    if progress is None:
        not_ready = [part.name.removeprefix(f"{snapshot.run}-") for part in snapshot.parts if part.state == "starting"]
        lacking = f"waits for {', '.join(not_ready)} to start" if not_ready else "waits for the orchestrator to answer"
        return plain(snapshot.message or lacking, 160)
    if progress.stalled_on_signal:
        return plain(progress.stalled_on_signal, 1000)
    if progress.waiting_for:
        return plain(f"waits for {progress.waiting_for}", 160)
    if progress.dataset is not None:
        return f"waits for completions of slice {progress.open_step}"
    if progress.open_step is not None:
        lacking_groups = max(0, progress.needed_groups - progress.accepted_groups)
        files = f", {count(progress.files_pending)} files wait for a verdict" if progress.files_pending else ""
        return f"waits for {count(lacking_groups)} more groups with signal for step {progress.open_step}{files}"
    return plain(snapshot.message, 160)


def trainer_is_away(snapshot: Snapshot) -> bool:
    """Whether the trainer ended and starts again: the orchestrator still tells what it did last, which is not what it does."""
    trainers = [part for part in snapshot.parts if part.container == "trainer"]
    return any(part.state in ("starting", "waiting", "pending", "failed") for part in trainers)


def headline(snapshot: Snapshot) -> str:
    """`step 7/60, version 7, trainer: update`."""
    progress = snapshot.progress
    if progress is None:
        return "starting"
    if progress.complete:
        return f"complete: {progress.steps_total} steps"
    if progress.dataset is not None:
        made = progress.dataset
        return f"slice {made.steps_collected}/{made.steps}, {count(made.rows_kept)} of {count(made.rows_seen)} completions kept"
    trained = (progress.last_step.step + 1) if progress.last_step else 0
    phase = f", trainer: {plain(progress.trainer_phase, 40)}" if progress.trainer_phase else ""
    if trainer_is_away(snapshot):
        phase = ", trainer starts again" if progress.trainer_phase else ", trainer starts"
    return f"step {trained}/{progress.steps_total}, version {progress.latest_version if progress.latest_version is not None else NONE}{phase}"


def view_model(snapshot: Snapshot, history: SnapshotHistory) -> Model:
    """Everything that the live view shows for one moment."""
    progress = snapshot.progress
    learning = progress.learning if progress is not None else None
    steps = history.ordered()
    last = steps[-1] if steps else None
    trained = steps[-1].step + 1 if steps else 0
    total = progress.steps_total if progress else snapshot.steps_total
    figures: list[tuple[str, str]] = [
        ("step", f"{trained}/{total}" if total else str(trained)),
        ("reward", number(last.reward if last else None)),
        ("task reward", number(last.task_reward if last else None)),
        ("gradient norm", number(last.gradient_norm if last else None)),
        ("clip ratio", percent(last.clip_ratio if last else None)),
        ("policy lag", number(last.policy_lag_mean if last else None, 2)),
        ("entropy", number(last.entropy if last else None)),
        ("version", NONE if progress is None or progress.latest_version is None else str(progress.latest_version)),
        ("accepted", count(progress.files_accepted if progress else None)),
        ("rejected", count(progress.files_rejected if progress else None)),
        ("pending", count(progress.files_pending if progress else None)),
        (
            "groups",
            NONE
            if progress is None
            else f"{progress.accepted_groups}/{progress.needed_groups} +{progress.pending_groups} pending",
        ),
        ("tokens/s", count(history.tokens_per_second())),
        ("nodes", nodes_text(progress)),
        ("time left", duration(time_left(snapshot, steps))),
    ]
    if last is not None and last.supervised:
        figures = supervised_figures(figures, last)
    return Model(
        run=plain(snapshot.run, 60),
        headline=headline(snapshot),
        waiting=waiting_for(snapshot),
        share_done=min(1.0, trained / total) if total else 0.0,
        rows=pod_rows(snapshot.parts, snapshot.run),
        figures=tuple(figures),
        curves=curves(steps),
        rejects=rejects_text(progress),
        complete=bool(progress and progress.complete),
        answers=answers_text(learning),
        cannot_learn=plain(learning.message, 600) if learning is not None and learning.reason is not None else "",
        samples=sample_rows(learning.samples) if learning is not None and learning.reason is not None else (),
    )


SAMPLE_LINES = 4
"""Of a prompt, its last, where templates end; of an answer, its last, where the final answer should be."""


def answers_text(learning: LearningProgress | None) -> str:
    """`12.0 % right, 60.0 % cut off, 30.0 % without a final answer`: shares of the newest answers."""
    if learning is None or not learning.groups:
        return ""
    shares = {
        "right": learning.right,
        "cut off": learning.cut,
        "without a final answer": learning.unanswered,
        "not scorable": learning.unscorable,
        "of groups always right": learning.groups_right,
        "of groups always wrong": learning.groups_wrong,
    }
    return ", ".join(f"{percent(share)} {what}" for what, share in shares.items() if share is not None)


def sample_rows(samples: Iterable[AnswerSample]) -> tuple[SampleRow, ...]:
    """Answers as text that is safe to show, whoever wrote them."""
    return tuple(
        SampleRow(
            f"{plain(each.problem_id, 60)}: {each.tokens} tokens{', cut off' if each.cut else ''}, task reward {number(each.task_reward)}",
            _last_lines(each.prompt),
            _last_lines(each.answer),
        )
        for each in samples
    )


def _last_lines(text: str) -> tuple[str, ...]:
    lines = text.split("\n")
    return tuple(plain(line, 200) for line in lines[-SAMPLE_LINES:])


def curves(steps: list[StepMetrics]) -> tuple[tuple[str, str], ...]:
    """Rewards, or of a supervised run its losses."""
    named: dict[str, list[float | None]]
    if steps and steps[-1].supervised:
        named = {"loss": [each.loss for each in steps], "held-out loss": [each.held_out_loss for each in steps]}
    else:
        named = {"reward": [each.reward for each in steps], "task reward": [each.task_reward for each in steps]}
    drawn = {label: sparkline([value for value in values if value is not None], 40) for label, values in named.items()}
    return tuple((label, curve) for label, curve in drawn.items() if curve)


SUPERVISED_FIGURES = ("step", "gradient norm", "version", "time left")
"""Of those of a run with rollouts, what a supervised run has too: it has neither workers nor rewards."""


def supervised_figures(figures: list[tuple[str, str]], last: StepMetrics) -> list[tuple[str, str]]:
    """The figures of a run of mode SFT."""
    own = [("loss", number(last.loss)), ("held-out loss", number(last.held_out_loss)), ("epoch", number(last.epoch, 2))]
    shared = [each for each in figures if each[0] in SUPERVISED_FIGURES]
    return [shared[0], *own, *shared[1:]]


def time_left(snapshot: Snapshot, steps: list[StepMetrics]) -> float | None:
    """Seconds until the last step is trained; None where nobody trains just now."""
    if snapshot.progress is None or trainer_is_away(snapshot):
        return None
    return eta_seconds(snapshot.progress, steps, snapshot.unix)


def nodes_text(progress: RunProgress | None) -> str:
    """`2 Healthy, 1 Dead`; states without nodes are left out."""
    if progress is None:
        return NONE
    return ", ".join(f"{number_of} {state}" for state, number_of in progress.nodes.items() if number_of) or "none"


def rejects_text(progress: RunProgress | None) -> str:
    """Reasons of rejects, most frequent first. The orchestrator's own words, but shown as if a stranger had chosen them."""
    if progress is None:
        return ""
    return ", ".join(
        f"{plain(reason, 40)} {times}" for reason, times in Counter(progress.reject_reasons).most_common(5)
    )
