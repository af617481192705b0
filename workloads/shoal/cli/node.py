"""The verbs of `shoal node`: what the owner of a pool gives to those whose machines may join it."""

import secrets

import typer

app = typer.Typer(
    name="node",
    help="Machines that join a run. Example: shoal node code",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def _node() -> None:
    """Keeps `code` a verb of its own while it is the only one."""


@app.command()
def code() -> None:
    """Make an invite code: the code goes to whoever may join, its public half into the pool's `admission.codes`.

    Example: shoal node code
    """
    from shoal.contracts.identity import PrivateKey

    seed = secrets.token_bytes(32)
    typer.echo(f"code (secret; the machine reads it from secrets/invite_code): {seed.hex()}")
    typer.echo(f"for spec admission.codes: {PrivateKey.from_seed(seed).public}")
