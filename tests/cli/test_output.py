"""Plain output over a whole story of snapshots."""

import io

from rich.console import Console
from run_documents import part, progress, snapshot, step_metrics

from shoal.cli.output import LiveOutput, PlainOutput, print_plain
from shoal.report.view import SnapshotHistory


def console(terminal: bool = False) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=100, force_terminal=terminal, highlight=False), file


def test_events_during_an_outage_of_the_orchestrator_are_shown_after_it() -> None:
    screen, file = console()
    output = PlainOutput(screen, SnapshotHistory())
    output.show(snapshot(2000, progress=progress()))
    output.show(snapshot(2001))
    output.show(snapshot(2002, progress=progress(last_step=step_metrics(7), latest_version=8)))
    assert "version 8 published" in file.getvalue()
    assert "step 8/60 trained" in file.getvalue()


def test_a_status_line_comes_every_ten_seconds() -> None:
    screen, file = console()
    output = PlainOutput(screen, SnapshotHistory())
    for t in range(0, 31):
        output.show(snapshot(2000.0 + t, parts=(part(),), progress=progress()))
    assert file.getvalue().count("status: ") == 4


def test_plain_output_has_no_control_codes_and_no_wrapping() -> None:
    screen, file = console()
    print_plain(screen, "[bold]x[/bold] \x1b[2J " + "y" * 300)
    assert file.getvalue() == "[bold]x[/bold] \\x1b[2J " + "y" * 300 + "\n"


def test_the_live_view_redraws_and_keeps_what_is_said() -> None:
    screen, file = console(terminal=True)
    output = LiveOutput(screen, SnapshotHistory())
    output.show(snapshot(2000, parts=(part(),), progress=progress()))
    output.say("stopping every process in order", 2000)
    output.close()
    assert "stopping every process in order" in file.getvalue()
    assert "trainer-1" in file.getvalue()
