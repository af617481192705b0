"""Draws a `Model` with rich. It decides only colours and columns; `view.py` decides the content.

Text goes into `rich.text.Text` objects and never through markup, so nothing in it is interpreted.
"""

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.report.view import Model, SampleRow

STATE_STYLES = {
    "ready": "green", "done": "green", "starting": "yellow", "waiting": "yellow", "pending": "yellow",
    "stopping": "yellow", "failed": "bold red",
}  # fmt: skip
STATE_MARKS = {
    "ready": "●",
    "done": "✓",
    "starting": "◐",
    "waiting": "◌",
    "pending": "◌",
    "failed": "✗",
    "stopping": "◌",
}
FIGURE_COLUMNS = 3
LABEL_WIDTH = 13  # the longest label of the first column of figures, so that curves stand below values


def render(model: Model) -> RenderableType:
    """The whole screen: headline and bar, figures with curves, the table of parts, what the run waits for."""
    title = Text.assemble(("shoal ", "dim"), (model.run, "bold"), ("  " + model.headline, ""))
    body: list[RenderableType] = [_bar(model.share_done), _figures(model)]
    body += [_line(label, curve, "cyan") for label, curve in model.curves]
    if model.rejects:
        body.append(_line("rejected for", model.rejects, "red"))
    if model.answers:
        body.append(_line("answers", model.answers, "red" if model.cannot_learn else "cyan"))
    if model.cannot_learn:
        body.append(_line("cannot learn", model.cannot_learn, "bold red"))
        body += [line for sample in model.samples for line in _sample(sample)]
    if model.waiting:
        body.append(_line("now", model.waiting, "yellow"))
    body.append(Text())
    body.append(_parts(model))
    body += [_line(row.name, row.note, "yellow") for row in model.rows if row.note]
    body.append(Text("Ctrl-C stops every process in order; the same command resumes.", style="dim"))
    return Panel(Group(*body), title=title, title_align="left", border_style="cyan", padding=(0, 1))


def _bar(share_done: float) -> Table:
    """In a table, because a bar by itself does not end its line."""
    table = Table.grid(expand=True)
    table.add_row(ProgressBar(total=1.0, completed=share_done, complete_style="cyan"))
    return table


def _line(label: str, text: str, style: str) -> Text:
    return Text.assemble((f"{label:<{LABEL_WIDTH}}  ", "dim"), (text, style))


def _sample(sample: SampleRow) -> list[Text]:
    return [_line("sample", sample.title, "")] + [
        Text(f"  {mark} {line}", style="dim")
        for mark, lines in ((">", sample.prompt), ("<", sample.answer))
        for line in lines
    ]


def _figures(model: Model) -> Table:
    table = Table.grid(padding=(0, 2), expand=False)
    for _ in range(FIGURE_COLUMNS):
        table.add_column(style="dim", no_wrap=True)
        table.add_column(justify="left", no_wrap=True, min_width=9)
    depth = -(-len(model.figures) // FIGURE_COLUMNS)
    columns = [model.figures[start : start + depth] for start in range(0, len(model.figures), depth)]
    for line in range(depth):
        cells: list[Text] = []
        for column in columns:
            label, value = column[line] if line < len(column) else ("", "")
            cells += [Text(label), Text(value, style="bold")]
        table.add_row(*cells)
    return table


def _parts(model: Model) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), expand=False, header_style="dim", pad_edge=False)
    table.add_column("part", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("processes")
    table.add_column("restarts", justify="right", no_wrap=True)
    table.add_column("address", no_wrap=True, style="dim")
    for row in model.rows:
        processes = Text()
        for name, state in row.containers:
            processes.append(STATE_MARKS.get(state, "?"), style=STATE_STYLES.get(state, "red"))
            processes.append(f"{name} ")
        restarts = Text(str(row.restarts), style="yellow" if row.restarts else "dim")
        table.add_row(
            Text(row.name, style="bold"),
            Text(row.state, style=STATE_STYLES.get(row.state, "red")),
            processes,
            restarts,
            Text(row.address),
        )
    return table
