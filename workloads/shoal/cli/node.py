"""The verbs of `shoal node`: join an open pool with this machine, and show its state; for admins: codes, and a run's nodes. Thin (docs/nodes.md)."""

import secrets
import time
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.printing import print_line
from shoal.errors import InputWrong

app = typer.Typer(
    name="node",
    help="Lend a machine to a run, or manage the machines of one. Example: shoal node join https://discovery.example.org",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

DEFAULT_FOLDER = Path.home() / ".local" / "share" / "shoal" / "node"
Folder = Annotated[
    Path,
    typer.Option(
        "--folder",
        metavar="DIR",
        envvar="SHOAL_NODE_FOLDER",
        help="Folder for key, weights and logs, with one folder per run.",
    ),
]


@app.command()
def join(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="URL of the run's discovery service, from the run's owner.")
    ],
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="NAME", help="Pool to join; default: the only open pool.")
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="This node's private key; created if the file is missing."),
    ] = None,
    run_key: Annotated[
        str | None,
        typer.Option(
            "--run-key", metavar="HEX", help="The run's public key; default: trust the first one seen over HTTPS."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="node.json from the run's owner, instead of asking discovery."),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            "--ca-file",
            metavar="FILE",
            help="Certificate authorities (PEM) for this run's HTTPS, instead of the system's.",
        ),
    ] = None,
    invite_code: Annotated[
        str | None,
        typer.Option(
            "--invite-code",
            metavar="CODE",
            envvar="SHOAL_INVITE_CODE",
            help="Invite code; prefer --invite-code-file, because other users can see a command line.",
        ),
    ] = None,
    invite_code_file: Annotated[
        Path | None, typer.Option("--invite-code-file", metavar="FILE", help="File with the invite code.")
    ] = None,
    bind: Annotated[
        str, typer.Option("--bind", metavar="ADDRESS", help="Address for health and metrics (ports 9103 to 9105).")
    ] = "127.0.0.1",
) -> None:
    """Join an open pool of a run with this machine, and work until the run is complete, Ctrl-C or SIGTERM. All connections are outgoing.

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
        str | None, typer.Argument(metavar="[RUN]", help="Run; default: the only run that this machine joined.")
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show this machine's node: its state, its work, what it waits for, and its accepted and rejected files.

    Example: shoal node status
    """
    from shoal.cli.node_status import print_status

    print_status(folder, run, _say, as_json=as_json)


@app.command()
def code() -> None:
    """Create an invite code: give the code to the machine's owner, and put its public half into the pool's `admission.codes`.

    Example: shoal node code
    """
    from shoal.crypto.keys import PrivateKey

    seed = secrets.token_bytes(32)
    typer.echo(f"code (secret; the machine reads it from secrets/invite_code): {seed.hex()}")
    typer.echo(f"for spec admission.codes: {PrivateKey.from_seed(seed).public}")


Orchestrator = Annotated[
    str | None,
    typer.Option("--orchestrator", metavar="URL", envvar="SHOAL_ORCHESTRATOR", help="The run's orchestrator."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", metavar="FILE", envvar="SHOAL_ADMIN_TOKEN_FILE", help="File with the run's admin token."
    ),
]
CaFile = Annotated[
    Path | None, typer.Option("--ca-file", metavar="FILE", help="Certificate authorities (PEM) for HTTPS.")
]
NodeKey = Annotated[str, typer.Argument(metavar="NODE", help="Public key of the node; the first digits are enough.")]
Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Reason; the ledger keeps it, and everybody can read it.")
]


@app.command("list")
def list_nodes(
    orchestrator: Orchestrator = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    state: Annotated[
        str, typer.Option("--state", metavar="STATE", help="Only nodes in this state, such as Healthy.")
    ] = "",
    pool: Annotated[str, typer.Option("--pool", metavar="NAME", help="Only nodes of this pool.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """For the run's admin: list its nodes.

    Example: shoal node list --orchestrator https://orchestrator.example.org --token-file token
    """
    from shoal.cli.node_admin import Admin, node_lines
    from shoal.contracts.admin import NodeList

    views = Admin(orchestrator, token_file, ca_file).nodes(state, pool)
    if as_json:
        _say(NodeList(nodes=views).model_dump_json(indent=2))
        return
    for line in node_lines(views, time.time()):
        _say(line)


@app.command()
def logs(
    node: NodeKey, orchestrator: Orchestrator = None, token_file: TokenFile = None, ca_file: CaFile = None
) -> None:
    """For the run's admin: print the last log lines of a node's processes; it answers with its next heartbeat.

    Example: shoal node logs 9c31 --orchestrator https://orchestrator.example.org --token-file token
    """
    from shoal.cli.node_admin import Admin, log_lines

    admin = Admin(orchestrator, token_file, ca_file)
    for line in log_lines(admin.logs(admin.find(node))):
        _say(line)


@app.command()
def restart(
    node: NodeKey, orchestrator: Orchestrator = None, token_file: TokenFile = None, ca_file: CaFile = None
) -> None:
    """For the run's admin: restart a node's work; it does so with its next heartbeat.

    Example: shoal node restart 9c31 --orchestrator https://orchestrator.example.org --token-file token
    """
    _change("restart", node, None, orchestrator, token_file, ca_file)


@app.command()
def invite(
    node: NodeKey, orchestrator: Orchestrator = None, token_file: TokenFile = None, ca_file: CaFile = None
) -> None:
    """For the run's admin: admit a machine whatever its pool's list and codes say; the pool's hardware requirements still apply.

    Example: shoal node invite KEY --orchestrator https://orchestrator.example.org --token-file token
    """
    _change("invite", node, None, orchestrator, token_file, ca_file)


@app.command()
def ban(
    node: NodeKey,
    reason: Reason,
    orchestrator: Orchestrator = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """For the run's admin: exclude a node. The ledger keeps the reason.

    Example: shoal node ban 9c31 --reason "ten keys on one machine" --token-file token
    """
    _change("ban", node, reason, orchestrator, token_file, ca_file)


@app.command()
def unban(
    node: NodeKey,
    reason: Reason,
    orchestrator: Orchestrator = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """For the run's admin: lift a ban. A node that was evicted for a rejected file stays excluded.

    Example: shoal node unban 9c31 --reason "another machine" --token-file token
    """
    _change("unban", node, reason, orchestrator, token_file, ca_file)


def _change(
    what: str, node: str, reason: str | None, orchestrator: str | None, token_file: Path | None, ca_file: Path | None
) -> None:
    from shoal.cli.node_admin import Admin, node_lines, reason_of
    from shoal.contracts.admin import NodeView

    body = reason_of(reason) if reason is not None else None
    admin = Admin(orchestrator, token_file, ca_file)
    view = admin.ask("POST", f"nodes/{admin.find(node)}/{what}", NodeView, body)
    for line in node_lines([view] if view is not None else [], time.time()):
        _say(line)


def _say(text: str) -> None:

    print_line(text)
