"""The verbs of `shoal env`: make an environment, check and time it, lock and publish its wheels, list what is installed. Thin; the work is done in
`shoal.environments`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import Credentials, Endpoint, Objects
from shoal.errors import InputWrong, RunFailed
from shoal.text import plain

if TYPE_CHECKING:
    from shoal.environments.wheels import Wheel

NAME_ONE = "name one, such as math or verifiers:PACKAGE"
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


PackagesOption = Annotated[
    Path | None,
    typer.Option("--packages", metavar="DIR", help="Folder of wheels (`shoal env add`), as a run would bring them."),
]


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
    packages: PackagesOption = None,
) -> None:
    """Check environments: gold scores 1, broken gold 0, scoring is bounded, two processes agree, no software is missing.

    Example: shoal env check math --tasks 20; shoal env check word-puzzles --packages packages

    Exit codes: 0 all are usable in a run, 1 one is not, 2 one is not installed.
    """
    from shoal.environments.base import installed, parameter

    with _brought(packages) as theirs:
        found = installed()
        _require(names or [], found)
        if packages is not None and not (names or theirs):
            raise InputWrong(f"the packages in {plain(packages, 200)} list no environment: {NAME_ONE}")
        _check_all(names or theirs or [name for name in sorted(found) if parameter(name) is None], tasks, seed, seconds)


def _check_all(names: list[str], tasks: int, seed: int, seconds: float) -> None:
    from shoal.environments.checking import check as try_out

    unfit = []
    for name in names:
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
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Environments, or NAME:PART; default: those of --packages."),
    ] = None,
    tasks: Annotated[int, typer.Option("--tasks", min=1, max=1000, help="Number of tasks to ask again and again.")] = 8,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the tasks.")] = 0,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=3600, help="Time of each environment.")] = 5.0,
    packages: PackagesOption = None,
) -> None:
    """Time environments on one core: tasks, episodes (a prompt and a score) and scores a second, and the memory that they take.

    Example: shoal env bench math; shoal env bench --packages packages

    Exit codes: 0 done, 1 one cannot be timed, 2 one is not installed.
    """
    from shoal.environments.base import installed
    from shoal.environments.checking import bench as timed

    with _brought(packages) as theirs:
        if not names and not theirs:
            raise InputWrong(f"nothing to time: {NAME_ONE}, or give --packages DIR with environments")
        _require(names or [], installed())
        broken: list[str] = []
        for name in names or theirs:
            report = timed(name, tasks, seed, seconds)
            broken.extend(f"{name}: {plain(fault, LONGEST_WORDS)}" for fault in report.faults)
            if not report.faults:
                facts = report.facts
                typer.echo(
                    f"{name}: {facts['episodes_a_second']:g} episodes/s, {facts['scores_a_second']:g} scores/s,"
                    f" {facts['tasks_a_second']:g} tasks/s, loaded in {facts['load_seconds']:.1f} s, {report.peak_bytes >> 20} MiB"
                )
    if broken:
        raise RunFailed("\n".join(broken))


@app.command()
def add(
    wanted: Annotated[
        list[str],
        typer.Argument(metavar="PACKAGE...", help="Names on the index (NAME, NAME==VERSION), or files of wheels."),
    ],
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder to put the wheels in.")] = Path(
        "packages"
    ),
    index: Annotated[
        str | None, typer.Option("--index", metavar="URL", help="Package index; absent: PIP_INDEX_URL.")
    ] = None,
) -> None:
    """Fetch an environment's wheel and all that it needs beside Shoal, check them, and print the lines for a manifest, each locked by its SHA-256.

    Example: shoal env add word-puzzles==1.2; shoal env add dist/word_puzzles-1.2-py3-none-any.whl --dir packages

    Nothing is installed or run. Wheels must be pure Python. Exit codes: 0 done, 2 a package cannot be used.
    """
    from shoal.environments.package_index import INDEX_VARIABLE, resolve
    from shoal.environments.packages import read_file, remove_others
    from shoal.environments.wheels import BadPackages, check_together, unlike_images

    if differs := unlike_images():
        typer.echo(f"warning: prepare may refuse what is chosen here: {differs}", err=True)
    if index is not None:
        os.environ[INDEX_VARIABLE] = index
    files = [each for each in wanted if each.endswith((".whl", ".tar.gz", ".zip")) or os.sep in each]
    try:
        given = {Path(each).name: read_file(Path(each)) for each in files}
        locked = resolve([each for each in wanted if each not in files], given, lambda line: typer.echo(f"# {line}"))
        check_together([each.wheel for each in locked])
    except BadPackages as error:
        raise InputWrong(plain(error, LONGEST_WORDS)) from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in locked:
            (folder / each.file_name).write_bytes(each.wheel.data)
        for name, package in remove_others(folder, {each.file_name: each.wheel for each in locked}):
            typer.echo(f"# {plain(name, 200)} removed: another wheel of {package}")
    except OSError as error:
        raise InputWrong(f"--dir {plain(folder, 200)}: {error.strerror}") from None
    place = folder.resolve()
    _print_lines(
        {each.file_name: each.wheel for each in locked},
        {each.file_name: ("path", str(place / each.file_name)) for each in locked if not each.url},
    )
    here = shlex.quote(str(folder))
    typer.echo(
        f"# next: shoal env check --packages {here}; for a cluster: shoal env publish {here} --to s3://BUCKET/PREFIX"
    )


@app.command()
def publish(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of wheels (`shoal env add`).")],
    to: Annotated[
        str,
        typer.Option("--to", metavar="s3://BUCKET/PREFIX", help="Bucket and storage.prefix of runs; or a folder."),
    ],
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Put wheels into the object store of runs, below packages/, and print the lines for a manifest. A key never gets other bytes.

    Example: shoal env publish packages --to s3://rollouts/shoal --endpoint http://minio:9000 --credentials ./keys

    Exit codes: 0 done, 1 the store did not take them, 2 a wheel or an option is wrong.
    """
    from shoal.environments.packages import read_folder
    from shoal.environments.wheels import BadPackages
    from shoal.report.ledger_sources import open_objects
    from shoal.storage import StoreUnavailable

    try:
        wheels = read_folder(folder)
    except BadPackages as error:
        raise InputWrong(plain(error, LONGEST_WORDS)) from None
    store = open_objects("--to", to, endpoint, credentials)
    keys = {name: f"packages/{re.sub('[+!]', '_', name)}" for name in wheels}
    try:
        for name, wheel in wheels.items():
            if not store.create(keys[name], wheel.data) and store.get(keys[name]) != wheel.data:
                raise InputWrong(
                    f"{keys[name]}: is there already with other bytes, which runs may have pinned: give the wheel another version"
                )
    except StoreUnavailable as error:
        raise RunFailed(f"the store is away: {plain(error, 400)}") from None
    _print_lines(wheels, {name: ("object", key) for name, key in keys.items()})


@contextmanager
def _brought(folder: Path | None) -> Iterator[list[str]]:
    """The packages of a folder as a run would bring them, for as long as the block lasts; names of their environments."""
    if folder is None:
        yield []
        return
    from shoal.environments.packages import laid_out, read_folder
    from shoal.environments.wheels import BadPackages

    try:
        wheels = read_folder(folder)
        with laid_out(list(wheels.values())):
            yield [name for wheel in wheels.values() for name in wheel.environments]
    except BadPackages as error:
        raise RunFailed(plain(error, LONGEST_WORDS)) from None


def _require(names: list[str], found: Mapping[str, object]) -> None:
    unknown = [name for name in names if name.partition(":")[0] not in found]
    if unknown:
        raise InputWrong(f"{', '.join(unknown)}: not installed here; installed: {', '.join(sorted(found)) or 'none'}")


def _print_lines(wheels: Mapping[str, Wheel], where: Mapping[str, tuple[str, str]]) -> None:
    """What stands below `tasks` in a manifest."""
    typer.echo("packages:")
    for name, wheel in wheels.items():
        digest = hashlib.sha256(wheel.data).hexdigest()
        line = {"package": wheel.package, "version": wheel.version, "sha256": digest}
        if name in where:
            line |= [where[name]]
        typer.echo(f"  - {{{', '.join(f'{key}: {json.dumps(value)}' for key, value in line.items())}}}")


@app.command()
def preview(
    file: Annotated[Path, typer.Option("-f", "--file", metavar="FILE", help="Manifest with one TrainingRun.")],
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="DIR", help="Folder with the tokenizer; absent: the model's own."),
    ] = None,
    objects: Objects = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
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
    from shoal.report.ledger_sources import open_objects
    from shoal.storage import StoreUnavailable

    manifest = read_manifest(file)
    unused = "" if tokenizer is None else r"spec\.model\.|spec\.tasks\S*\.offlineFilter\.model\."
    if lines := [line for line in lacking(manifest.run.spec) if not unused or not re.match(unused, line)]:
        raise InputWrong(*(f"{file}: {line}" for line in lines))
    store = open_objects("--store", objects, endpoint, credentials) if objects is not None else None
    try:
        found = look(config_of(manifest), tokenizer, store)
    except CannotPreview as error:
        raise InputWrong(f"{file}: {error}") from None
    except StoreUnavailable as error:
        raise RunFailed(f"the store is away: {plain(error, 400)}") from None
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
