"""`report.html`: one self-contained page. In: `ReportData`, plots, commands that load the model. Out: HTML text.

No script, no style sheet, no image from elsewhere; all text is escaped. The page reads from top to bottom: what came of it, the curves, where the
time went, how to use the model, what is missing.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from shoal.report.collect import ReportData
from shoal.report.evaluations import COLUMNS, score_rows
from shoal.report.loading import LoadCommand
from shoal.report.plots import Plot
from shoal.text import count, duration, number, percent, plain, size

CSS = """
:root { --ink: #1c242c; --soft: #5a6570; --line: #dfe4e8; --ground: #f6f8f9; --accent: #1769aa; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 Inter, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; letter-spacing: -0.01em; } h2 { font-size: 18px; margin: 40px 0 12px; }
p.lead { margin: 0 0 24px; color: var(--soft); }
dl.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(165px, 1fr)); gap: 12px; margin: 0; }
dl.cards div { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
dt { color: var(--soft); font-size: 12.5px; } dd { margin: 2px 0 0; font-size: 20px; white-space: nowrap; font-variant-numeric: tabular-nums; }
dd small { display: block; white-space: normal; color: var(--soft); font-size: 12.5px; }
div.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(480px, 100%), 1fr)); gap: 16px; }
figure { margin: 0; background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px 8px; }
figcaption { font-size: 13.5px; color: var(--soft); margin-bottom: 4px; } figure svg { width: 100%; height: auto; display: block; }
table { border-collapse: collapse; background: #fff; border: 1px solid var(--line); border-radius: 8px; }
th, td { padding: 6px 14px; text-align: left; border-bottom: 1px solid var(--line); font-size: 14px; }
tr:last-child td { border-bottom: 0; } th { color: var(--soft); font-weight: 500; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; font-size: 13px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
ul.notes { color: var(--soft); padding-left: 20px; }
@media print { body { background: #fff; } figure { break-inside: avoid; } }
"""


def text(value: object, limit: int = 400) -> str:
    """Escaped, without control characters."""
    return escape(plain(value, limit), quote=True)


def page(data: ReportData, plots: Sequence[Plot], commands: Sequence[LoadCommand]) -> str:
    """The whole page."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Shoal run {text(data.run)}</title><style>{CSS}</style></head><body><main>",
            f"<h1>{text(data.run)}</h1>",
            f'<p class="lead">{text(_lead(data))}</p>',
            _cards(data),
            "<h2>Curves</h2>" if plots else "",
            '<div class="plots">' if plots else "",
            *(f"<figure><figcaption>{text(plot.caption)}</figcaption>{plot.svg}</figure>" for plot in plots),
            "</div>" if plots else "",
            _sources(data),
            _evaluations(data),
            _tasks(data),
            _files(data),
            _time(data),
            _model(data, commands),
            _notes(data.notes),
            "</main></body></html>",
        ]
    )


def _lead(data: ReportData) -> str:
    time = f" in {duration(data.wall_seconds)}" if data.wall_seconds is not None else ""
    total = f" of {data.steps_total}" if data.steps_total is not None else ""
    parts = [f"{len(data.steps)}{total} steps trained{time}"]
    parts += [f"rollouts by {data.engine}"] if data.engine else []
    parts += [f"weights through {data.relay}"] if data.relay else []
    return ", ".join([*parts, f"object store: {data.store}"]) + "."


def _cards(data: ReportData) -> str:
    gain = None if data.reward_start is None or data.reward_end is None else data.reward_end - data.reward_start
    cards = [
        ("Task reward", f"{number(data.reward_start, 2)} → {number(data.reward_end, 2)}", f"change {gain:+.3f}" if gain is not None else ""),
        ("Steps", _steps(data), f"newest version {data.versions[-1]}" if data.versions else "no version published"),
        ("Files accepted", count(data.files["accept"]), f"{count(data.files['reject'])} rejected, {count(data.files['expired'])} expired"),
        ("Groups trained on", count(data.groups_used), f"{count(data.completion_tokens)} completion tokens"),
        ("Weights broadcast", size(data.bytes_broadcast), "served by relays"),
        ("Wall time", duration(data.wall_seconds), f"{duration(_per_step(data))} per step"),
    ]  # fmt: skip
    body = "".join(f"<div><dt>{text(t)}</dt><dd>{text(v)}<small>{text(s)}</small></dd></div>" for t, v, s in cards)
    return f'<dl class="cards">{body}</dl>'


def _steps(data: ReportData) -> str:
    return f"{len(data.steps)} / {data.steps_total}" if data.steps_total is not None else str(len(data.steps))


def _per_step(data: ReportData) -> float | None:
    return data.wall_seconds / len(data.steps) if data.wall_seconds is not None and data.steps else None


def _tasks(data: ReportData) -> str:
    """What became of rows in prepare, of tasks in the offline filter, and of completions in a data set."""
    pieces = []
    if (read := data.tasks) is not None:
        rows = [("tasks", count(read.tasks), ""), ("with a proven gold answer", count(read.proven), "")]
        rows += [(f"refused: {each.reason}", count(each.count), ", ".join(each.first)) for each in read.refused]
        rows += [(f"left out: {why}", count(times), "") for why, times in read.skipped.items()]
        pieces += ["<h2>Tasks</h2>", table(("rows of the data set", "number", "the first"), rows)]
    if (found := data.filtered) is not None:
        rows = [(what, count(times), percent(times / found.tasks_before)) for what, times in found.outcomes.items()]
        pieces += ["<h2>Offline filter</h2>", table(("problems", "number", "share"), rows)]
    if (made := data.dataset) is not None:
        seen = made.rows + sum(made.left_out.values())
        rows = [("kept", count(made.rows), percent(made.rows / seen if seen else None))]
        rows += [(why, count(times), percent(times / seen)) for why, times in made.left_out.items()]
        pieces += [f"<h2>Data set {text(made.name)}</h2>", table(("completions", "number", "share"), rows)]
    return "\n".join(pieces)


def _sources(data: ReportData) -> str:
    """What each source that the recipe names is learnt by, and the figures of the last step that learnt from a token of it."""
    told = [(name, each.step, means) for each in data.steps for name, means in each.by_task_type.items()]
    told.sort(key=lambda one: (one[2].clip_ratio is not None, one[1]))
    last = {name: (step, means) for name, step, means in told}
    rows = [
        (
            name, means.objective, number(means.loss_weight), str(step), number(means.loss), percent(means.clip_ratio),
            number(means.entropy), number(means.task_reward),
        )
        for name, (step, means) in sorted(last.items())
        if means.objective is not None
    ]  # fmt: skip
    head = ("source", "objective", "loss weight", "last step", "loss", "clip ratio", "entropy", "task reward")
    return "<h2>Objectives of sources</h2>" + table(head, rows) if rows else ""


def _evaluations(data: ReportData) -> str:
    """Scores of versions on the run's benchmarks."""
    if not data.evaluations:
        return ""
    best = data.best_version
    rows = []
    for row in score_rows(data.evaluations):
        mark = " (best)" if best is not None and (best.version, best.benchmark) == (row.version, row.benchmark) else ""
        rows.append((f"{row.version} on {row.benchmark}{mark}", *row.cells))
    return "<h2>Scores of versions</h2>" + table(COLUMNS, rows)


def _files(data: ReportData) -> str:
    total = sum(data.files.values())
    if not total:
        return ""
    rows = [(outcome, count(times), percent(times / total)) for outcome, times in data.files.most_common()]
    rows += [
        (f"reject: {reason}", count(times), percent(times / total))
        for reason, times in data.reject_reasons.most_common()
    ]
    return "<h2>Verdicts</h2>" + table(("verdict", "files", "share"), rows)


def _time(data: ReportData) -> str:
    pieces = []
    if data.busy_seconds:
        rows = [
            (part, f"{seconds:,.1f}", percent(seconds / data.wall_seconds if data.wall_seconds else None))
            for part, seconds in _largest_first(data.busy_seconds)
        ]
        pieces += ["<h2>Where the time went</h2>", table(("part", "CPU seconds", "of one core"), rows)]
    if data.phase_seconds:
        phases = [
            (f"{part}: {phase}", f"{seconds:,.1f}", percent(seconds / data.wall_seconds if data.wall_seconds else None))
            for part, found in data.phase_seconds.items()
            for phase, seconds in _largest_first(found)
        ]
        pieces += [
            "<h2>Phases</h2>",
            table(("part and phase", "seconds, all its processes", "of wall time, so of two up to 200 %"), phases),
        ]
    return "\n".join(pieces)


def _largest_first(values: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(values.items(), key=lambda item: -item[1])


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table of escaped text; all columns but the first are figures."""

    def cells(row: tuple[str, ...], tag: str) -> str:
        return "".join(
            f"<{tag}{'' if position == 0 else ' class=n'}>{text(cell)}</{tag}>" for position, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def _model(data: ReportData, commands: Sequence[LoadCommand]) -> str:
    if data.model is None:
        return ""
    shown = "".join(f"<p>{text(command.title)}</p><pre>{escape(command.text)}</pre>" for command in commands)
    return f"<h2>The trained model</h2><p>Version {data.model.version} lies in <code>{text(data.model.path)}</code>.</p>{shown}"


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return "<h2>Notes</h2><ul class=notes>" + "".join(f"<li>{text(note)}</li>" for note in notes) + "</ul>"
