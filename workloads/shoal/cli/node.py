"""The verbs of `shoal node`: join an open pool with this machine, and show its state; for admins: codes, and a run's nodes. Thin (docs/nodes.md)."""

import secrets
import time
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.options import AsJson, Credentials, Endpoint
from shoal.cli.printing import print_line, print_note
from shoal.errors import InputWrong, RunFailed

app = typer.Typer(
    name="node",
    help="Lend a machine to a run, or manage the machines of one. Example: shoal node join https://discovery.example.org",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

PAGE_PORT = 9110
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
    upload_limit: Annotated[
        str | None,
        typer.Option("--upload-limit", metavar="RATE", help="Most that it sends, such as 20Mbit; default: no limit."),
    ] = None,
    download_limit: Annotated[
        str | None,
        typer.Option(
            "--download-limit", metavar="RATE", help="Most that it receives, such as 100Mbit; default: no limit."
        ),
    ] = None,
    hours: Annotated[
        str | None,
        typer.Option(
            "--hours",
            metavar="HH:MM-HH:MM",
            help="Hours of the day in which it works, by this machine's clock; several with commas; default: always.",
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="LIST", help="GPUs to lend, by index or UUID, such as 0,1; default: all."),
    ] = None,
    page: Annotated[
        int,
        typer.Option(
            "--page", min=0, max=65535, metavar="PORT", help="Port of its status page, on loopback only; 0: no page."
        ),
    ] = PAGE_PORT,
) -> None:
    """Join an open pool of a run with this machine, and work until the run is complete, Ctrl-C or SIGTERM. All connections are outgoing.

    Examples:

    shoal node join https://discovery.example.org

    shoal node join https://discovery.example.org --pool gpus --invite-code-file code --ca-file authority.pem

    shoal node join https://discovery.example.org --hours 22:00-07:00 --upload-limit 20Mbit --gpus 0
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
    wishes = Wishes(
        url.rstrip("/"), folder, pool, key, run_key, ca_file, invite_code, bind, upload_limit, download_limit,
        hours, gpus, page,
    )  # fmt: skip
    raise typer.Exit(run_join(wishes, print_line))


Run = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="Run; default: the only run that this machine joined.")
]
WaitSeconds = Annotated[
    float, typer.Option("--wait", min=0.0, metavar="SECONDS", help="Time to wait for leases that it finishes.")
]


@app.command()
def status(
    run: Run = None,
    folder: Folder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Show this machine's node: its state, its work, what it waits for, and its accepted and rejected files.

    Example: shoal node status
    """
    from shoal.cli.node_status import print_status

    print_status(folder, run, print_line, as_json=as_json)


@app.command()
def pause(run: Run = None, folder: Folder = DEFAULT_FOLDER) -> None:
    """Stop this machine's work within 25 seconds and free its GPU, until `resume`; the node stays a member of its run.

    Example: shoal node pause
    """
    from shoal.cli import node_owner

    node_owner.pause(folder, run, print_line)


@app.command()
def resume(run: Run = None, folder: Folder = DEFAULT_FOLDER) -> None:
    """Work again after `pause`.

    Example: shoal node resume
    """
    from shoal.cli import node_owner

    node_owner.resume(folder, run, print_line)


@app.command()
def drain(run: Run = None, folder: Folder = DEFAULT_FOLDER, wait: WaitSeconds = 3600.0) -> None:
    """Let this machine's node finish the leases that it holds, then end; the next `join` works again.

    Example: shoal node drain
    """
    from shoal.cli import node_owner

    node_owner.drain(folder, run, print_line, wait)


@app.command()
def leave(
    run: Run = None,
    folder: Folder = DEFAULT_FOLDER,
    wait: WaitSeconds = 3600.0,
    delete_key: Annotated[
        bool,
        typer.Option("--delete-key", help="Also remove this node's key, after which nobody can act as this node."),
    ] = False,
) -> None:
    """Drain this machine's node, then remove weights, logs, settings and invite code. Keys stay unless asked.

    Example: shoal node leave
    """
    from shoal.cli import node_owner

    node_owner.leave(folder, run, print_line, wait, delete_key=delete_key)


@app.command()
def earned(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="The ledger: a copy (the folder above ledger/), or s3://BUCKET/PREFIX/RUN."
        ),
    ],
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Run; default: the only run that this machine joined.")
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="This node's private key, if `join` was given one.")
    ] = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
    as_json: AsJson = False,
) -> None:
    """Show what this machine earned, from the run's ledger, checked against the run key of the first join.

    Example: shoal node earned ./copy
    """
    from shoal.cli import node_earned

    problems = node_earned.earned(
        folder, run, source, key, print_line, print_note, as_json=as_json, endpoint=endpoint, credentials=credentials
    )
    if problems:
        from shoal.text import plain

        raise RunFailed(f"the ledger is wrong, so the figures prove nothing: {plain(problems[0], 500)}")


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def unit(
    context: typer.Context,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="User that the node runs as; default: you.")
    ] = None,
) -> None:
    """Print a systemd unit that joins a run when this machine starts. Give URL and options of `shoal node join`.

    Example: shoal node unit https://discovery.example.org --hours 22:00-07:00 --upload-limit 20Mbit
    """
    import getpass

    from shoal.cli import node_unit
    from shoal.cli.node_lending import lending_of

    command = typer.main.get_command(app).commands["join"]  # type: ignore[attr-defined]  # an app is a group
    with command.make_context("join", list(context.args), parent=context) as parsed:
        given = {
            name: value
            for name, value in parsed.params.items()
            if name == "folder" or str(parsed.get_parameter_source(name)).endswith("COMMANDLINE")
        }
    flags = {each.name: each.opts[0] if each.opts[0].startswith("--") else "" for each in command.params}
    lending_of(*(given.get(name) for name in ("upload_limit", "download_limit", "hours", "gpus")))
    me = getpass.getuser()
    print_line(node_unit.unit(given, flags, user or me, node_unit.installation()).rstrip("\n"))
    for place in node_unit.written(given):
        if place.is_dir():
            continue
        if user not in (None, me):
            print_note(f"{user} must make {place} before the unit starts")
            continue
        try:
            place.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise InputWrong(f"{place}: {error.strerror}; the unit needs this folder before it starts") from None
        print_note(f"made {place}, which the unit needs before it starts")


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
    as_json: AsJson = False,
) -> None:
    """For the run's admin: list its nodes.

    Example: shoal node list --orchestrator https://orchestrator.example.org --token-file token
    """
    from shoal.cli.node_admin import Admin, node_lines
    from shoal.contracts.admin import NodeList

    views = Admin(orchestrator, token_file, ca_file).nodes(state, pool)
    if as_json:
        print_line(NodeList(nodes=views).model_dump_json(indent=2))
        return
    for line in node_lines(views, time.time()):
        print_line(line)


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
        print_line(line)


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
        print_line(line)
