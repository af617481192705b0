"""Arguments and options that several verbs have: which run, where its store lies, and which key proves it. Each is declared here once.

Parts of signatures of `main`, `keys`, `ledger`, `node` and `serving`; defaults stand in the signatures, as typer has it.
"""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_RUNS_DIR = Path("runs")

AnyRun = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="Run, its folder, a copy of its store, or s3://BUCKET/PREFIX/RUN."),
]
RunHere = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="Name of the run, or its folder; default: the only run.")
]
RunsDir = Annotated[Path, typer.Option("--runs-dir", metavar="DIR", help="Folder of runs, one folder each.")]
RunKey = Annotated[str | None, typer.Option("--run-key", metavar="HEX", help="The run's public key, 64 hex digits.")]
Join = Annotated[
    Path | None, typer.Option("--join", metavar="FILE", help="node.json of the run: roster and public key.")
]
Endpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="URL", help="URL of the S3 store; default: AWS_ENDPOINT_URL.")
]
Credentials = Annotated[
    Path | None,
    typer.Option(
        "--credentials",
        metavar="DIR",
        help="Folder with accessKey and secretKey; default: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    ),
]
Objects = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="s3://BUCKET/PREFIX",
        help="Bucket and storage.prefix, or a folder, where each `object` of the manifest lies.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
