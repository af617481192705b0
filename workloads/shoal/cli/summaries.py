"""Summaries in a list of verbs: the whole first paragraph of each. By default the list cuts them in the middle of a sentence. Called by `main`."""

import inspect

import typer


def whole_summaries(app: typer.Typer) -> None:
    """Give every verb of a program, and of the programs below it, its first paragraph as the summary."""
    for command in app.registered_commands:
        text = inspect.getdoc(command.callback) or ""
        command.short_help = " ".join(text.partition("\n\n")[0].split())
    for group in app.registered_groups:
        if group.typer_instance is not None:
            whole_summaries(group.typer_instance)
