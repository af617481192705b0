"""The verbs of `shoal env`: make an environment, check it, list what is installed. Thin; the work is done in `shoal.environments`."""

import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal.errors import InputWrong, RunFailed
from shoal.text import plain

LONGEST_WORDS = 2000
"""Characters of what a package says."""

app = typer.Typer(
    name="env",
    help="Environments: the tasks of a run, and how answers are scored. Example: shoal env list",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the environment, such as word-puzzles.")],
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder in which to create the package.")] = Path(
        "."
    ),
) -> None:
    """Create an installable package with a working environment to start from.

    Example: shoal env new word-puzzles
    """
    from shoal.environments.scaffold import CannotMake, new_environment

    try:
        made = new_environment(name, folder)
    except CannotMake as error:
        raise InputWrong(str(error)) from None
    here = shlex.quote(sys.executable)  # the environment that has Shoal: no package index has it for another one
    typer.echo(f"{made}: made; next: {here} -m pip install -e {shlex.quote(str(made))} && shoal env check {name}")


@app.command()
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Installed environments, or NAME:PART; default: all that need no part.",
        ),
    ] = None,
    tasks: Annotated[int, typer.Option("--tasks", min=1, max=1000, help="Number of tasks to try.")] = 8,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the tasks.")] = 0,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Time limit of each of the two passes.")] = 300.0,
) -> None:
    """Check environments: gold scores 1, broken gold 0, scoring is bounded, two processes agree, no software is missing.

    Example: shoal env check math --tasks 20

    Exit codes: 0 all are usable in a run, 1 one is not, 2 one is not installed.
    """
    from shoal.environments.base import installed, parameter
    from shoal.environments.checking import check as try_out

    found = installed()
    unknown = [name for name in names or () if name.partition(":")[0] not in found]
    if unknown:
        raise InputWrong(f"{', '.join(unknown)}: not installed here; installed: {', '.join(sorted(found)) or 'none'}")
    unfit = []
    for name in names or [name for name in sorted(found) if parameter(name) is None]:
        report = try_out(name, tasks, seed, seconds)
        for fault in report.faults:
            typer.echo(f"{name}: {plain(fault, LONGEST_WORDS)}")
        if report.faults:
            unfit.append(name)
        else:
            facts = report.facts
            typer.echo(
                f"{name}: usable in a run; {facts['tasks']} tasks, slowest score {facts['slowest_score_seconds']:.2f} s,"
                f" {report.peak_bytes >> 20} MiB, digest {facts['digest'][:12]}"
            )
    if unfit:
        raise RunFailed(f"not usable in a run: {', '.join(unfit)}")


@app.command()
def preview(
    file: Annotated[Path, typer.Option("-f", "--file", metavar="FILE", help="Manifest with one TrainingRun.")],
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="DIR", help="Folder with the tokenizer; absent: the model's own."),
    ] = None,
) -> None:
    """Print three prompts of a run as its model sees them, text and tokens, and how a right and a wrong answer score.

    Example: shoal env preview -f examples/arithmetic/trainingrun.yaml

    Exit codes: 0 all is well, 1 a right answer does not score 1 or does not fit, 2 manifest, tasks or tokenizer are wrong.
    """
    from shoal.cli.local_run import config_of, read_manifest
    from shoal.cli.preflight import lacking
    from shoal.cli.previewing import preview_lines
    from shoal.environments.preview import CannotPreview
    from shoal.environments.preview import preview as look

    manifest = read_manifest(file)
    unused = "" if tokenizer is None else r"spec\.model\.|spec\.tasks\S*\.offlineFilter\.model\."
    if lines := [line for line in lacking(manifest.run.spec) if not unused or not re.match(unused, line)]:
        raise InputWrong(*(f"{file}: {line}" for line in lines))
    try:
        found = look(config_of(manifest), tokenizer)
    except CannotPreview as error:
        raise InputWrong(f"{file}: {error}") from None
    for line in preview_lines(found):
        typer.echo(line)
    if found.problems:
        raise RunFailed("\n".join(found.problems))


@app.command(name="list")
def list_installed() -> None:
    """List the installed environments with the digests that runs pin.

    Example: shoal env list
    """
    from shoal.environments.base import BadEnvironment, digest, installed, load, parameter

    rows = [("NAME", "VERSION", "DIGEST", "PACKAGE")]
    for name, point in sorted(installed().items()):
        package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "?"
        try:
            environment = load(name)
            pinned, part = digest(environment), parameter(name)
            if part is not None:
                name, pinned = f"{name}:{part}", "one for each"
            rows.append((name, plain(environment.version), pinned, package))
        except (BadEnvironment, ImportError) as error:
            rows.append((name, "?", f"cannot be used: {plain(error, LONGEST_WORDS)}", package))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)) + f"  {row[3]}")
