"""The verbs of `shoal keys`: show the keys of a run on this machine, and replace them. Thin (docs/security.md).

On a cluster `spec.keys` of the TrainingRun does the same, and its status shows the keys.
"""

import time
from pathlib import Path
from typing import Annotated, get_args

import typer

from shoal.cli.options import DEFAULT_RUNS_DIR, RunHere, RunsDir
from shoal.cli.printing import print_line
from shoal.contracts.roster import HOLDERS, KeyHolder
from shoal.errors import InputWrong, RunFailed

app = typer.Typer(
    name="keys",
    help="The keys of a run on this machine. Example: shoal keys rotate arithmetic --role trainer --leaked",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

WAIT_SECONDS = 60.0
POLL_SECONDS = 0.2


@app.command()
def show(run: RunHere = None, runs_dir: RunsDir = DEFAULT_RUNS_DIR) -> None:
    """Print number, fingerprint and age of every key.

    Example: shoal keys show arithmetic
    """
    from shoal.report.run_folders import find_run

    for line in _lines(find_run(run, runs_dir)):
        print_line(line)


@app.command()
def rotate(
    run: RunHere = None,
    role: Annotated[
        str | None,
        typer.Option("--role", metavar="ROLE", help=f"Whose key: {', '.join(HOLDERS)}; default: every key."),
    ] = None,
    leaked: Annotated[
        bool,
        typer.Option("--leaked", help="Somebody else may have the key: it is refused at once, not after ten minutes."),
    ] = False,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
) -> None:
    """Replace a key of a run, or all keys. The run goes on; the parts whose keys are replaced start again.

    A run that is stopped replaces them when it is started again.

    Example: shoal keys rotate arithmetic

    Example: shoal keys rotate arithmetic --role trainer --leaked
    """
    from shoal.report.run_folders import find_run, holder_of
    from shoal_operator.local.key_wishes import ask, held_keys

    if role is not None and role not in get_args(KeyHolder):
        raise InputWrong(f"--role: there is no {role!r}; allowed: {', '.join(HOLDERS)}")
    run_dir = find_run(run, runs_dir)
    holders: tuple[KeyHolder, ...] = HOLDERS if role is None else tuple(each for each in HOLDERS if each == role)
    try:
        asked = ask(run_dir, holders, leaked=leaked).wishes()
    except ValueError as error:
        raise InputWrong(str(error)) from None
    if holder_of(run_dir) is None:
        print_line(f"{run_dir.name} is not running: its keys are replaced when `shoal up` starts it again")
        return
    deadline = time.monotonic() + WAIT_SECONDS
    while any(each.generation < asked[each.name].generation for each in held_keys(run_dir) if each.name in holders):
        if time.monotonic() > deadline:
            raise RunFailed(f"{run_dir.name} has not replaced its keys in {WAIT_SECONDS:.0f} s: `shoal logs` says why")
        time.sleep(POLL_SECONDS)
    for line in _lines(run_dir):
        print_line(line)


def _lines(run_dir: Path) -> list[str]:
    from shoal_operator.local.key_wishes import held_keys

    keys = held_keys(run_dir)
    if not keys:
        raise InputWrong(f"{run_dir.name} has no keys yet: start it with `shoal up` first")
    return [
        f"{each.name:<13} {each.generation:>3}  {each.fingerprint}  "
        + (f"since {each.since}" if each.since else "since the run began")
        for each in keys
    ]
