"""The verbs of `shoal node`: bring this machine to an open pool, see how it is, make invite codes. Thin (docs/nodes.md)."""

import secrets
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.errors import InputWrong

app = typer.Typer(
    name="node",
    help="Machines that join a run. Example: shoal node join https://discovery.example.org",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

DEFAULT_FOLDER = Path.home() / ".local" / "share" / "shoal" / "node"
Folder = Annotated[
    Path,
    typer.Option(
        "--folder", metavar="DIR", envvar="SHOAL_NODE_FOLDER", help="Key, weights and logs; one folder a run in it."
    ),
]


@app.command()
def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="Discovery of the run, as its owner gives it.")],
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="NAME", help="Pool to join; not needed if only one is open.")
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="This node's private key; made if it is not there.")
    ] = None,
    run_key: Annotated[
        str | None,
        typer.Option(
            "--run-key", metavar="HEX", help="The run's public key; without it the first one seen over HTTPS is kept."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="node.json from the run's owner, in place of asking discovery."),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            "--ca-file",
            metavar="FILE",
            help="Authorities (PEM) for all HTTPS of this run, in place of the well-known ones.",
        ),
    ] = None,
    invite_code: Annotated[
        str | None,
        typer.Option(
            "--invite-code",
            metavar="CODE",
            envvar="SHOAL_INVITE_CODE",
            help="Better in a file: other users can see a command line.",
        ),
    ] = None,
    invite_code_file: Annotated[
        Path | None, typer.Option("--invite-code-file", metavar="FILE", help="File with the invite code.")
    ] = None,
    bind: Annotated[
        str, typer.Option("--bind", metavar="ADDRESS", help="Address for health and metrics, ports 9103 to 9105.")
    ] = "127.0.0.1",
) -> None:
    """Bring this machine to an open pool of a run, and work until Ctrl-C or SIGTERM. It dials out only.

    Examples:

    shoal node join https://discovery.example.org

    shoal node join https://discovery.example.org --pool gpus --invite-code-file code --ca-file authority.pem
    """
    from shoal.cli.node_join import Wishes
    from shoal.cli.node_join import join as run_join

    if invite_code is not None and invite_code_file is not None:
        raise InputWrong("give --invite-code or --invite-code-file, not both")
    if invite_code_file is not None:
        try:
            invite_code = invite_code_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InputWrong(f"--invite-code-file {invite_code_file}: {error}") from None
    wishes = Wishes(url.rstrip("/"), folder, pool, key, run_key, config, ca_file, invite_code, bind)
    raise typer.Exit(run_join(wishes, _say))


@app.command()
def status(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Run; not needed if this machine joined only one.")
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="JSON in place of text.")] = False,
) -> None:
    """Show how this machine's node is: state, work, what it waits for, files accepted and rejected.

    Example: shoal node status
    """
    from shoal.cli.node_status import print_status

    print_status(folder, run, _say, as_json=as_json)


@app.command()
def code() -> None:
    """Make an invite code: the code goes to whoever may join, its public half into the pool's `admission.codes`.

    Example: shoal node code
    """
    from shoal.contracts.identity import PrivateKey

    seed = secrets.token_bytes(32)
    typer.echo(f"code (secret; the machine reads it from secrets/invite_code): {seed.hex()}")
    typer.echo(f"for spec admission.codes: {PrivateKey.from_seed(seed).public}")


def _say(text: str) -> None:
    from shoal.cli.main import _print

    _print(text)
