"""The verbs of `shoal serving`: promote a version, go back, show what is served, keep a folder on it, make an image of it. Thin.

Exit codes: 0 done, 1 the store or the registry failed or somebody else moved the tag, 2 the input was wrong. Ctrl-C and SIGTERM end `fetch --follow`.
"""

import getpass
import json
import signal
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from shoal.cli.options import DEFAULT_RUNS_DIR, AnyRun, AsJson, Credentials, Endpoint, Join, RunKey, RunsDir
from shoal.cli.printing import print_line
from shoal.contracts.serving import TAG, Promotion, TagName
from shoal.errors import InputWrong
from shoal.text import percent, plain

if TYPE_CHECKING:
    from shoal.report.access import RunAccess
    from shoal.serving.promotion import TagState, TagWish

app = typer.Typer(
    name="serving",
    help="Promote versions of a run to serving, and follow them. Example: shoal serving promote arithmetic --best --reason 'release 1'",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Tag = Annotated[str, typer.Option("--tag", metavar="NAME", help="The tag that is meant; a run may have several.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it stays in the tag's history.")]
By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who moves the tag; default: your login on this machine.")
]


@app.command()
def promote(
    run: AnyRun = None,
    version: Annotated[
        int | None, typer.Option("--version", min=0, max=999_999, metavar="N", help="The version, chosen by hand.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The version that the run's evaluation found best.")] = False,
    benchmark: Annotated[
        str | None,
        typer.Option("--benchmark", metavar="NAME", help="With --best: best on this one, not on the first."),
    ] = None,
    reason: Reason = "",
    tag: Tag = TAG,
    by: By = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            min=1,
            metavar="N",
            help="Versions that a roll back can reach, this one counted; older ones may be deleted. Default: all.",
        ),
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    run_key: RunKey = None,
    join: Join = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Let a tag of the run's store name a version, after all its bytes were checked. The run keeps the weights of promoted versions.

    Example: shoal serving promote arithmetic --best --reason "0.81 on sums"

    Example: shoal serving promote s3://shoal/shoal/arithmetic --endpoint https://store.example --version 7 --reason "asked for by support"
    """
    from shoal.serving.promotion import best_by_evaluation
    from shoal.serving.promotion import promote as move

    if best == (version is not None):
        raise InputWrong("say which version: either --version N, or --best")
    if benchmark is not None and not best:
        raise InputWrong("--benchmark goes with --best")
    wish = _wish(tag, by, reason, keep)
    access = _open(run, runs_dir, run_key, join, endpoint, credentials)
    chosen = best_by_evaluation(access, benchmark) if version is None else version
    made = move(access, chosen, "best" if best else "hand", wish, print_line)
    if made.unix != wish.unix:
        print_line(f"tag {tag} names version {chosen} already, since {_when(made)}; nothing was changed")
        return
    if not made.scores:
        print_line(f"version {chosen} was not evaluated")
    print_line(_line(made))


@app.command()
def rollback(
    run: AnyRun = None,
    to: Annotated[
        int | None,
        typer.Option("--to", min=0, metavar="N", help="A version that the tag named before; default: the last one."),
    ] = None,
    reason: Reason = "",
    tag: Tag = TAG,
    by: By = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    run_key: RunKey = None,
    join: Join = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Let a tag name the version that it named before. A second roll back goes further back.

    Example: shoal serving rollback arithmetic --reason "wrong answers about dates"
    """
    from shoal.serving.promotion import roll_back

    wish = _wish(tag, by, reason, None)
    access = _open(run, runs_dir, run_key, join, endpoint, credentials)
    print_line(_line(roll_back(access, to, wish, print_line)))


@app.command()
def show(
    run: AnyRun = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="NAME", help="Only this tag; default: all.")] = None,
    as_json: AsJson = False,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    run_key: RunKey = None,
    join: Join = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Print what each tag names, who promoted it and why, and what it named before. Says if the store has lost it.

    Example: shoal serving show arithmetic
    """
    from shoal.serving.promotion import guarded, state_of
    from shoal.storage.promotions import read_tags

    access = _open(run, runs_dir, run_key, join, endpoint, credentials)
    if tag is None:
        with guarded(access):
            tags = read_tags(access.store)
    else:
        tags = [_checked(tag)]
    states = [state_of(access, each) for each in tags]
    if as_json:
        print_line(json.dumps([_record(state) for state in states]))
        return
    for state in states:
        for line in _history(state):
            print_line(line)
    if not states:
        print_line(f"run {access.run} has no tag; `shoal serving promote` makes one")


@app.command()
def fetch(
    run: AnyRun = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Where versions go; DIR/current leads to the model.")
    ] = None,
    follow: Annotated[
        float | None,
        typer.Option("--follow", min=1.0, metavar="SECONDS", help="Look again so often, until SIGTERM or Ctrl-C."),
    ] = None,
    spread: Annotated[
        float,
        typer.Option(
            "--spread", min=0.0, metavar="SECONDS", help="With --follow: change at a random moment within this time."
        ),
    ] = 0.0,
    tag: Tag = TAG,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    run_key: RunKey = None,
    join: Join = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Make DIR/current lead to the model that a tag names, every piece checked, and keep it there with --follow.

    Example: shoal serving fetch arithmetic --folder models

    Example: shoal serving fetch s3://shoal/shoal/arithmetic --endpoint https://store.example --folder /models --follow 30
    """
    from shoal.serving.following import fetch as fetch_once
    from shoal.serving.following import follow as keep_on
    from shoal.serving.following import moved_line

    if folder is None:
        raise InputWrong("give --folder DIR: where the model goes")
    tag = _checked(tag)
    access = _open(run, runs_dir, run_key, join, endpoint, credentials)
    if follow is None:
        print_line(moved_line(fetch_once(access, tag, folder, print_line)))
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the first process of a container ignores it otherwise
    keep_on(access, tag, folder, print_line, every_seconds=follow, spread_seconds=spread)


@app.command()
def image(
    run: AnyRun = None,
    layout: Annotated[
        Path | None, typer.Option("--layout", metavar="DIR", help="Write an OCI image layout into this folder.")
    ] = None,
    push: Annotated[
        str | None, typer.Option("--push", metavar="HOST/NAME[:TAG]", help="Send it to a registry; TAG as --tag.")
    ] = None,
    plain_http: Annotated[bool, typer.Option("--plain-http", help="The registry has no HTTPS.")] = False,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Where the model is fetched to, as `fetch` does.")
    ] = Path("models"),
    tag: Tag = TAG,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    run_key: RunKey = None,
    join: Join = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Make an OCI image of the model that a tag names: in a folder, in a registry, or both. Logins are those of `docker login`.

    Example: shoal serving image arithmetic --push registry.example.org/team/arithmetic

    Example: shoal serving image arithmetic --layout arithmetic-image
    """
    from shoal.serving.following import fetch as fetch_once
    from shoal.serving.image import model_image, write_layout
    from shoal.serving.registry import Reference, push_image, stored_login

    if layout is None and push is None:
        raise InputWrong("give --layout DIR or --push HOST/NAME:TAG: where the image goes")
    tag = _checked(tag)
    to = Reference.parse(push, tag) if push is not None else None
    login = stored_login(to.host) if to is not None else None
    access = _open(run, runs_dir, run_key, join, endpoint, credentials)
    fetched = fetch_once(access, tag, folder, print_line)
    made = model_image(fetched.folder, fetched.promotion)
    if layout is not None:
        write_layout(made, layout, tag, print_line)
    if to is not None:
        push_image(made, to, print_line, plain_http=plain_http, login=login)
    named = f" as {to.host}/{to.name}@{made.manifest.digest}" if to is not None else ""
    print_line(f"version {fetched.promotion.version} of run {access.run}: {made.manifest.digest}{named}")


def _open(
    run: str | None, runs_dir: Path, run_key: str | None, join: Path | None, endpoint: str | None,
    credentials: Path | None,
) -> "RunAccess":  # fmt: skip
    from shoal.report.access import access_of, open_run
    from shoal.report.ledger_sources import open_source
    from shoal.report.run_folders import elsewhere, find_run

    opened = open_source(run, runs_dir, run_key=run_key, join=join, endpoint=endpoint, credentials=credentials)
    return access_of(opened) if elsewhere(run) else open_run(find_run(run, runs_dir))


def _checked(tag: str) -> str:
    try:
        return TypeAdapter(TagName).validate_python(tag)
    except ValidationError:
        raise InputWrong(f"--tag {plain(tag, 80)}: at most 40 of a-z, 0-9 and -, with no - at either end") from None


def _wish(tag: str, by: str | None, reason: str, keep: int | None) -> "TagWish":
    from shoal.serving.promotion import TagWish

    if not reason.strip():
        raise InputWrong("give --reason TEXT: why the tag moves, for whoever reads its history")
    return TagWish(
        _checked(tag), by or f"{getpass.getuser()}@{socket.gethostname()}", reason.strip(), time.time(), keep
    )


def _when(made: Promotion) -> str:
    return datetime.fromtimestamp(made.unix, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _line(made: Promotion) -> str:
    scores = ", ".join(f"{percent(each.avg_at_k)} on {plain(each.benchmark, 40)}" for each in made.scores)
    how = {"best": "the best one", "hand": "chosen by hand", "back": "rolled back"}[made.how]
    return (
        f"{made.tag}: version {made.version} ({made.sha256[:12]}), {how}, by {plain(made.by, 80)} on {_when(made)}:"
        f" {plain(made.reason, 400)}{f' [{scores}]' if scores else ''}"
    )


def _history(state: "TagState") -> list[str]:
    stay = {move.number for move in state.reachable}
    lines = [_line(state.named)]
    if state.lost:
        lines.append(f"  lost: {state.lost}; promote another version or go back")
    for move in reversed(state.moves[:-1]):
        lines.append(f"  before: {_line(move)}" + ("" if move.number in stay else " (no longer kept)"))
    return lines


def _record(state: "TagState") -> dict[str, object]:
    return {
        "tag": state.tag,
        "lost": state.lost or None,
        "can_go_back_to": [move.version for move in state.reachable[:-1]],
        "moves": [move.model_dump(mode="json") for move in state.moves],
    }
