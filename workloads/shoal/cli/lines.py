"""Plain lines instead of the live view: one for every event, and a status line every few seconds. Pure.

For logs, pipes and `--no-tty`. `events(before, after)` compares two snapshots; a line reports a change, never an unchanged state.
"""

from datetime import datetime

from shoal.contracts.answers import LearningProgress
from shoal.contracts.evaluation import EvaluationProgress
from shoal.contracts.protocol import RunProgress
from shoal.contracts.steps import StepMetrics
from shoal.report.snapshot import Part, Snapshot
from shoal.report.view import Model, SnapshotHistory, sample_rows, time_left, waiting_for
from shoal.text import count, duration, number, percent, plain

STATUS_SECONDS = 10.0
"""A status line at least this often, so that a quiet run differs from a hung one."""


def stamped(unix: float, text: str) -> str:
    """`04:18:07 text`, in the time zone of the machine."""
    return f"{datetime.fromtimestamp(unix).astimezone():%H:%M:%S} {text}"


def events(before: Snapshot | None, after: Snapshot) -> list[str]:
    """Events between two snapshots, in words, without times."""
    lines = _part_events(before, after)
    if after.progress is not None:
        lines += _progress_events(before.progress if before else None, after.progress)
    # Once the orchestrator answers, it knows better than the operator what goes on.
    if after.progress is None and after.message and after.message != (before.message if before else ""):
        lines.append(plain(after.message, 200))
    return lines


def _part_events(before: Snapshot | None, after: Snapshot) -> list[str]:
    earlier = {part.name: part for part in before.parts} if before else {}
    lines = [line for part in after.parts if (line := _part_event(earlier.get(part.name), part))]
    present = {part.pod for part in after.parts}
    return lines + [f"{plain(name)}: gone" for name, part in earlier.items() if part.pod not in present]


def _part_event(before: Part | None, after: Part) -> str | None:
    name = plain(after.name)
    if before is not None and after.restarts > before.restarts:
        exited = "" if after.last_exit is None else f" after exit code {after.last_exit}"
        return f"{name}: restarted{exited} (restarts: {after.restarts})"
    if before is not None and after.state == before.state:
        return None
    where = f" at {plain(after.address, 40)}" if after.address and after.state in ("starting", "ready") else ""
    why = f": {plain(after.message, 160)}" if after.message else ""
    return f"{name}: {after.state}{where}{why}"


def _progress_events(before: RunProgress | None, after: RunProgress) -> list[str]:
    """No events for the first answer: they happened before this program started (`beginning` has the run's state)."""
    if before is None:
        return []
    lines = []
    if after.latest_version is not None and after.latest_version != before.latest_version:
        lines.append(f"version {after.latest_version} published")
    if after.last_step is not None and (before.last_step is None or after.last_step.step > before.last_step.step):
        lines.append(step_line(after.last_step, after.steps_total))
    ended = {(each.version, each.benchmark) for each in before.evaluations if each.ended}
    for scored in after.evaluations:
        if scored.ended and (scored.version, scored.benchmark) not in ended:
            lines.append(f"version {scored.version} on {plain(scored.benchmark, 40)}: {_scored_text(scored)}")
    for reason, times in after.reject_reasons.items():
        new = times - before.reject_reasons.get(reason, 0)
        if new > 0:
            lines.append(f"{new} file{'s' if new > 1 else ''} rejected: {plain(reason, 40)}")
    if after.stalled_on_signal and not before.stalled_on_signal:
        lines.append(plain(after.stalled_on_signal, 1000))
    lines += _learning_events(before.learning, after.learning)
    if after.complete and not before.complete:
        lines.append(f"run complete: {after.steps_total} steps")
    return lines


def _learning_events(before: LearningProgress | None, after: LearningProgress | None) -> list[str]:
    """When the newest groups turn out to carry no signal, why, and three answers; and when they carry some again."""
    was = before.reason if before is not None else None
    if after is None or after.reason == was:
        return []
    if after.reason is None:
        return ["the newest groups carry signal again"]
    lines = [f"the run cannot learn ({after.reason}): {plain(after.message, 600)}"]
    for sample in sample_rows(after.samples):
        lines.append(f"sample {sample.title}")
        lines += [f"  > {line}" for line in sample.prompt]
        lines += [f"  < {line}" for line in sample.answer]
    return lines


def _scored_text(scored: EvaluationProgress) -> str:
    """`31.2 % right (95 % interval 22.0 % to 42.1 %)`."""
    if scored.avg_at_k is None:
        return "not fully scored"
    within = "" if scored.low is None else f" (95 % interval {percent(scored.low)} to {percent(scored.high)})"
    return f"{percent(scored.avg_at_k)} right{within}"


def step_line(metrics: StepMetrics, steps_total: int) -> str:
    """One finished step."""
    skipped = f", {metrics.skipped_updates} updates skipped" if metrics.skipped_updates else ""
    took = f"{count(metrics.completion_tokens)} tokens in {duration(metrics.finished_unix - metrics.started_unix)}{skipped}"
    if metrics.supervised:
        return (
            f"step {metrics.step + 1}/{steps_total} trained: epoch {number(metrics.epoch, 2)}, loss {number(metrics.loss)}, "
            f"held-out loss {number(metrics.held_out_loss)}, gradient norm {number(metrics.gradient_norm)}, "
            f"learning rate {metrics.learning_rate:.2e}, {took}"
        )
    each = "; ".join(
        f"{name} {number(of.task_reward)} in {of.groups} groups"
        + (f", {percent(of.sampled_share)} of those sampled" if of.sampled_share is not None else "")
        for name, of in metrics.by_task_type.items()
    )
    return (
        f"step {metrics.step + 1}/{steps_total} trained: reward {number(metrics.reward)}, "
        f"task reward {number(metrics.task_reward)}{f' ({each})' if each else ''}, gradient norm {number(metrics.gradient_norm)}, "
        f"clip ratio {percent(metrics.clip_ratio)}, policy lag {number(metrics.policy_lag_mean, 2)}, "
        f"entropy {number(metrics.entropy)}, {took}"
    )


def status_line(snapshot: Snapshot, history: SnapshotHistory, model: Model) -> str:
    """Where the run stands, in one line."""
    ready = sum(part.state in ("ready", "done") for part in snapshot.parts)
    pieces = [model.headline, f"{ready}/{len(snapshot.parts)} processes ready"]
    progress = snapshot.progress
    if progress is not None and not progress.complete:
        rate = history.tokens_per_second()
        if progress.last_step is not None and progress.last_step.supervised:
            last = progress.last_step
            pieces.append(f"loss {number(last.loss)}, held-out loss {number(last.held_out_loss)}")
        else:
            pieces.append(
                f"files {count(progress.files_accepted)} accepted, {count(progress.files_rejected)} rejected, "
                f"{count(progress.files_pending)} pending"
            )
            if rate is not None:
                pieces.append(f"{count(rate)} tokens/s")
            if model.answers:
                pieces.append(f"answers {model.answers}")
        left = time_left(snapshot, history.ordered())
        if left is not None:
            pieces.append(f"{duration(left)} left")
    waits = waiting_for(snapshot)
    if waits:
        pieces.append(waits)
    return "status: " + "; ".join(pieces)
