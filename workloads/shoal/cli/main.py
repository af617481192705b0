"""The `shoal` program: verbs, options, help, exit codes. Thin: each verb calls one module of `cli`, imported when it is needed.

Exit codes (DESIGN section 8): 0 done, 1 the run failed, 2 the input was wrong; 130 when Ctrl-C or SIGTERM stopped a run, which can be resumed.
"""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.env import app as env_app
from shoal.cli.eval import evaluate
from shoal.cli.keys import app as keys_app
from shoal.cli.ledger import app as ledger_app
from shoal.cli.node import app as node_app
from shoal.cli.options import DEFAULT_RUNS_DIR, AnyRun, Credentials, Endpoint, Join, RunHere, RunKey, RunsDir
from shoal.cli.printing import print_line, print_note
from shoal.cli.serving import app as serving_app
from shoal.cli.summaries import whole_summaries
from shoal.errors import EXIT_DONE, EXIT_INPUT_WRONG, EXIT_INTERRUPTED, EXIT_RUN_FAILED, InputWrong, RunFailed

app = typer.Typer(
    name="shoal",
    help="Decentralised asynchronous reinforcement learning of language models. Example: shoal up -f examples/arithmetic/trainingrun.yaml",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(env_app)
app.add_typer(keys_app)
app.add_typer(ledger_app)
app.add_typer(node_app)
app.add_typer(serving_app)
app.command(name="eval")(evaluate)

ManifestOption = Annotated[Path, typer.Option("-f", "--file", metavar="FILE", help="Manifest with one TrainingRun.")]
NoTtyOption = Annotated[bool, typer.Option("--no-tty", help="Print plain lines instead of the live view.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Delete the data of an earlier run of this name.")]
SecretOption = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="FILE|NAME=VARIABLE",
        help="A Secret that the run names: its manifest, or variables of your environment by name; repeatable.",
    ),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        from shoal.installed import installed

        print_line(f"shoal {installed().version}")
        raise typer.Exit(EXIT_DONE)


@app.callback()
def _shoal(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Decentralised asynchronous reinforcement learning of language models. Each verb's --help has an example.

    Example: shoal up -f examples/arithmetic/trainingrun.yaml
    """


@app.command()
def init(
    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="MODEL", help="owner/name on a hub, a folder with config.json, or `generated`."
        ),
    ],
    dataset: Annotated[
        list[str],
        typer.Option(
            "--dataset",
            metavar="DATA[@ENV]",
            help="owner/name on a hub, a file or folder, or an installed environment; given again: a mixture of all. @ENV judges this one alone.",
        ),
    ],
    gpus: Annotated[int, typer.Option("--gpus", min=0, max=4096, help="GPUs of the whole run; 0: CPUs only.")] = 0,
    gpu_memory: Annotated[
        int, typer.Option("--gpu-memory", metavar="GB", min=8, max=1024, help="Memory of one GPU in 10^9 bytes.")
    ] = 80,
    parameters: Annotated[
        str | None,
        typer.Option("--parameters", metavar="SIZE", help="Such as 7B; absent: from config.json, else from the name."),
    ] = None,
    environment: Annotated[
        str | None, typer.Option("--environment", metavar="ENV", help="What judges a data set's answers; absent: math.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="RUN", help="Name of the run; absent: the model's.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write it; absent: standard output.")
    ] = None,
) -> None:
    """Write a first manifest: settings by model size, GPUs divided between the parts, and the memory that is expected.

    Example: shoal init --model Qwen/Qwen3-1.7B --dataset openai/gsm8k --gpus 8 -o run.yaml

    Exit codes: 0 written, also if notes on standard error say what does not fit, 2 the input is wrong.
    """
    from shoal.cli.first_manifest import ManifestRequest, first_manifest, write

    made = first_manifest(ManifestRequest(model, tuple(dataset), gpus, gpu_memory, parameters, environment, name))
    for note in made.notes:
        typer.echo(f"note: {note}", err=True)
    if output is None:
        typer.echo(made.text, nl=False)
        return
    write(made, output)
    typer.echo(f"{output}: written; next: shoal env preview -f {output}, then shoal up -f {output}")


@app.command()
def up(
    file: ManifestOption,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    no_tty: NoTtyOption = False,
    fresh: FreshOption = False,
    secret: SecretOption = None,
) -> None:
    """Run a manifest on this machine; an earlier run of the same name resumes.

    Example: shoal up -f examples/arithmetic/trainingrun.yaml

    Ctrl-C stops every process in order; a second Ctrl-C kills them. Exit codes: 0 done, 1 the run failed, 2 the manifest is wrong, 130 stopped by
    Ctrl-C or SIGTERM.
    """
    from rich.console import Console

    from shoal.cli.local_run import read_manifest
    from shoal.cli.up import up as run_up

    manifest = read_manifest(file, secret or ())
    console = Console(highlight=False, markup=False, emoji=False)
    raise typer.Exit(run_up(manifest, runs_dir, console, live=console.is_terminal and not no_tty, fresh=fresh))


@app.command()
def generate(
    file: ManifestOption,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    no_tty: NoTtyOption = False,
    fresh: FreshOption = False,
    secret: SecretOption = None,
) -> None:
    """Write a data set of verified traces: run a manifest of mode Generate like `up`, then copy the data set into the run's folder.

    Example: shoal generate -f examples/generate/trainingrun.yaml
    """
    from rich.console import Console

    from shoal.cli.generate import generate as run_generate
    from shoal.cli.local_run import read_manifest

    manifest = read_manifest(file, secret or ())
    console = Console(highlight=False, markup=False, emoji=False)
    raise typer.Exit(run_generate(manifest, runs_dir, console, live=console.is_terminal and not no_tty, fresh=fresh))


@app.command()
def down(run: RunHere = None, runs_dir: RunsDir = DEFAULT_RUNS_DIR) -> None:
    """Stop a run that `up` started, and wait until all its processes have ended.

    Example: shoal down arithmetic
    """
    from shoal.cli.down import down as stop
    from shoal.cli.local_run import clean_up
    from shoal.report.run_folders import find_run

    run_dir = find_run(run, runs_dir)
    if stop(run_dir):
        typer.echo(f"{run_dir.name}: stopped; `shoal up` with its manifest resumes from the last version")
        return
    ended = clean_up(run_dir)
    typer.echo(
        f"{run_dir.name}: ended {ended} processes that a killed `shoal up` left running"
        if ended
        else f"{run_dir.name}: is not running"
    )


@app.command()
def logs(
    run: RunHere = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    part: Annotated[
        str | None, typer.Option("--part", metavar="PART", help="Only this pod, container or pod/container.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Print new lines until Ctrl-C.")] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="90s, 10m, 2h, 1d ago, or an ISO time.")
    ] = None,
) -> None:
    """Print the logs of all parts of a run, merged by time.

    Example: shoal logs arithmetic --part trainer --since 10m --follow
    """
    from shoal.cli.log_lines import since_unix
    from shoal.cli.logs import print_logs
    from shoal.report.run_folders import LOGS_FOLDER, find_run

    try:
        begin = since_unix(since, time.time()) if since else 0.0
    except ValueError as error:
        raise InputWrong(str(error)) from None
    print_logs(find_run(run, runs_dir) / LOGS_FOLDER, part, begin, follow, print_line)


@app.command()
def render(file: ManifestOption) -> None:
    """Print every object that the operator would apply, as YAML; applies nothing.

    Example: shoal render -f examples/arithmetic/trainingrun.yaml
    """
    from shoal.cli.local_run import read_manifest, rendered

    print_line(rendered(read_manifest(file)).rstrip())


@app.command()
def plan(
    file: ManifestOption,
    parameters: Annotated[
        str | None,
        typer.Option("--parameters", metavar="SIZE", help="Such as 7B; absent: from config.json, else from the name."),
    ] = None,
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu",
            metavar="NAME",
            help="Of parts whose gpu.type says nothing: A100, A100-40GB, H100, H200, B200, L40S, L4, RTX-4090, RTX-3090.",
        ),
    ] = "H100",
    mean_tokens: Annotated[
        float | None,
        typer.Option(
            "--mean-tokens",
            min=1,
            help="Of a completion; absent: of the run, of lengthReward.targets, or 0.29 of the longest.",
        ),
    ] = None,
    prompt_tokens: Annotated[
        float | None,
        typer.Option("--prompt-tokens", min=1, help="Mean of a prompt; absent: 256, or what maxSequenceLength leaves."),
    ] = None,
    signal_share: Annotated[
        float | None,
        typer.Option(
            "--signal-share",
            min=0.01,
            max=1.0,
            help="Of sampled groups, those that onlineFilter TaskReward keeps; absent: of the run, else 0.5.",
        ),
    ] = None,
    uplink: Annotated[float, typer.Option("--uplink", min=0.1, metavar="MBIT", help="Of a stranger's machine.")] = 50.0,
    downlink: Annotated[
        float, typer.Option("--downlink", min=0.1, metavar="MBIT", help="Of a stranger's machine.")
    ] = 500.0,
    relay_mbit: Annotated[
        float, typer.Option("--relay-mbit", min=0.1, metavar="MBIT", help="Of the origin, and of each relay.")
    ] = 1000.0,
    store_mbit: Annotated[
        float, typer.Option("--store-mbit", min=0.1, metavar="MBIT", help="Of the object store, all together.")
    ] = 10_000.0,
    delta_ratio: Annotated[
        float | None,
        typer.Option(
            "--delta-ratio",
            min=1.0,
            help="Ratio of a version's size to its delta's. Default: 30 up to a learning rate of 1e-5, otherwise 4.5.",
        ),
    ] = None,
    strangers: Annotated[
        list[str] | None,
        typer.Option("--strangers", metavar="[POOL=]N", help="Machines that join an open pool; repeatable."),
    ] = None,
    price: Annotated[float | None, typer.Option("--price", min=0.0, help="Price of one GPU for one hour.")] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="Take lengths, signal and training time from this run's steps."),
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Say what a manifest needs, before anything runs: time of a step by part, bottleneck, disks, memory, links, GPU hours.

    Example: shoal plan -f examples/intellect-2/trainingrun.yaml --strangers 33 --price 2.5

    Example: shoal plan -f run.yaml --run run --json

    Rates are published ones (workloads/shoal/planner/rates.py) or the given ones; no part was measured on a GPU here. Exit codes: 0 it can work, also
    with notes, 1 it cannot, 2 the input is wrong.
    """
    from shoal.cli.local_run import read_manifest
    from shoal.cli.plan import PlanRequest, document, json_text, lines, planned, rates_of_run

    manifest = read_manifest(file)
    measured = rates_of_run(run, runs_dir) if run is not None else None
    asked = PlanRequest(
        parameters, gpu, mean_tokens, prompt_tokens, signal_share, uplink, downlink, relay_mbit, store_mbit,
        delta_ratio, strangers or (), price,
    )  # fmt: skip
    made = planned(manifest.run, asked, measured)
    for line in [json_text(document(made))] if as_json else lines(made):
        print_line(line)
    if not made.plan.works:
        raise typer.Exit(EXIT_RUN_FAILED)


@app.command()
def report(
    run: AnyRun = None,
    other: Annotated[
        str | None,
        typer.Argument(metavar="[OTHER]", help="A second run to lay over the first, given in the same ways."),
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="DIR", help="For a run elsewhere (else RUN-report) or for two (else RUN-and-OTHER)."
        ),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", metavar="URL", help="Prometheus of a run elsewhere, for times and utilisation."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAME", help="Namespace of the run, if Prometheus has several.")
    ] = None,
    run_key: RunKey = None,
    join: Join = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Write report.html and report.json of a run, and say where its model is and how to load it. Of two runs: comparison.html and comparison.json.

    Example: shoal report arithmetic

    Example: shoal report arithmetic carries

    Example: shoal report s3://shoal/shoal/arithmetic --endpoint https://store.example --prometheus http://127.0.0.1:9090
    """
    from shoal.cli.reporting import compare_runs, last_words, report_elsewhere, write_report
    from shoal.report.run_folders import elsewhere, find_run

    if run is not None and other is not None:
        if prometheus is not None:
            raise InputWrong("--prometheus cannot be used to compare two runs: a comparison reads their stores only")
        for line in compare_runs((run, other), runs_dir, output, endpoint, credentials):
            typer.echo(line)
        return
    if elsewhere(run, prometheus):
        from shoal.report.ledger_sources import open_source

        opened = open_source(run, runs_dir, run_key=run_key, join=join, endpoint=endpoint, credentials=credentials)
        for line in last_words(report_elsewhere(opened, output, prometheus, namespace)):
            typer.echo(line)
        return
    written, problem = write_report(find_run(run, runs_dir))
    if written is None:
        raise InputWrong(problem)
    for line in last_words(written):
        typer.echo(line)


@app.command()
def push(
    run: AnyRun = None,
    to: Annotated[str, typer.Option("--to", metavar="OWNER/NAME", help="Repository; made if it is not there.")] = "",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="With the hub's token; else HF_TOKEN.")
    ] = None,
    licence: Annotated[
        str | None, typer.Option("--licence", metavar="ID", help="For the card, such as apache-2.0; else unknown.")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository private; refuse one that is public.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the card and send nothing.")] = False,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="For a run elsewhere: of the model; else RUN-model.")
    ] = None,
    run_key: RunKey = None,
    join: Join = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Put a run's trained model, its tokenizer and a generated card on a model hub; a push that broke goes on. HF_ENDPOINT names another hub.

    Example: shoal push arithmetic --to me/arithmetic --licence apache-2.0

    Exit codes: 0 done, 1 the hub or the store failed, 2 the options are wrong or the token may not write.
    """
    if not to:
        raise InputWrong("give --to OWNER/NAME: the repository on the hub")
    from shoal.cli.push import push as run_push
    from shoal.report.access import access_of, open_run
    from shoal.report.ledger_sources import open_source
    from shoal.report.run_folders import MODEL_FOLDER, elsewhere, find_run

    opened = open_source(run, runs_dir, run_key=run_key, join=join, endpoint=endpoint, credentials=credentials)
    if elsewhere(run):
        access = access_of(opened)
        place = folder or Path(f"{access.run}-model")
    elif folder is not None:
        raise InputWrong("--folder is for a run elsewhere: this one's model lies in its own folder")
    else:
        run_dir = find_run(run, runs_dir)
        access, place = open_run(run_dir), run_dir / MODEL_FOLDER
    run_push(
        access, opened.trust.run_key, place, to, print_line,
        token_file=token_file, licence=licence, private=private, dry_run=dry_run,
    )  # fmt: skip


@app.command()
def ui(
    source: AnyRun = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address to bind; beyond loopback the page needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0: any free port.")] = 8787,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="File with the page's token; default: a new token, printed."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="Certificate for HTTPS (PEM); needs --key.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Private key of the certificate (PEM).")
    ] = None,
    orchestrator: Annotated[
        str | None,
        typer.Option("--orchestrator", metavar="URL", help="Orchestrator of a run elsewhere, for its live state."),
    ] = None,
    run_key: RunKey = None,
    join: Join = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Show a run, running or finished, on a page in the browser: parts, timeline, curves, nodes, rollouts, ledger. The page only reads.

    Example: shoal ui arithmetic
    """
    from shoal.cli.ui import PageAddress, serve

    place = PageAddress(host, port, token_file, certificate, key)
    serve(
        source, runs_dir, place, print_line,
        orchestrator=orchestrator, run_key=run_key, join=join, endpoint=endpoint, credentials=credentials,
    )  # fmt: skip


@app.command()
def trace(
    source: AnyRun = None,
    otlp: Annotated[
        str | None,
        typer.Option("--otlp", metavar="URL", envvar="OTEL_EXPORTER_OTLP_ENDPOINT", help="OTLP receiver (HTTP)."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep sending until the run ends or Ctrl-C.")] = False,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    run_key: RunKey = None,
    join: Join = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Send a trace of each submission, from its lease to its training step, to an OpenTelemetry collector.

    Example: shoal trace arithmetic --otlp http://127.0.0.1:4318 --follow
    """
    if not otlp:
        raise InputWrong("give --otlp URL (or OTEL_EXPORTER_OTLP_ENDPOINT): tracing is off without a receiver")
    from shoal.cli.trace import trace as send_traces
    from shoal.report.ledger_sources import open_source

    opened = open_source(source, runs_dir, run_key=run_key, join=join, endpoint=endpoint, credentials=credentials)
    send_traces(opened, otlp, print_line, follow=follow)


@app.command()
def calibrate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder with a Hugging Face checkpoint.")],
    dtype: Annotated[
        str, typer.Option(help="Data type for serving: auto (the checkpoint's), float32, bfloat16 or float16.")
    ] = "auto",
    environment: Annotated[str, typer.Option(help="Environment that gives the prompts.")] = "math",
    sequences: Annotated[int, typer.Option(min=2, help="Completions to measure.")] = 2000,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a completion.")] = 256,
    max_length: Annotated[int, typer.Option(min=16, help="Most tokens of prompt and completion.")] = 4096,
    seconds: Annotated[float, typer.Option(min=1.0, help="Start no completion after this many seconds.")] = 3600.0,
    file_sequences: Annotated[int, typer.Option(min=1, help="Completions in one uploaded file.")] = 64,
    learning_rate: Annotated[
        float, typer.Option(min=0.0, help="The run's learning rate, for the control with weights one step older.")
    ] = 3e-7,
    updates: Annotated[int, typer.Option(min=1, help="Optimizer updates per step.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed for sampling and tasks.")] = 0,
    output: Annotated[Path | None, typer.Option(help="File to write; default: proof_profile.json in MODEL.")] = None,
    target: Annotated[
        list[int] | None,
        typer.Option(
            "--target", min=1, metavar="TOKENS", help="Length that the run's prompts ask for; repeatable, used in turn."
        ),
    ] = None,
    engine: Annotated[
        bool,
        typer.Option(
            "--engine", help="Also measure vLLM's own proofs, and derive the bounds of whole files from them."
        ),
    ] = False,
    quantization: Annotated[
        str | None, typer.Option(help="The run's `rollouts.quantization`: fp8; default: none.")
    ] = None,
) -> None:
    """Measure a model's honest proof errors: write masked dimensions, thresholds and error rates beside its weights.

    Example: shoal calibrate ./my-model --environment math --dtype bfloat16 --sequences 4000 --engine
    """
    if dtype not in ("auto", "float32", "bfloat16", "float16"):
        raise InputWrong(f"--dtype {dtype}: allowed: auto, float32, bfloat16, float16")
    if quantization not in (None, "fp8"):
        raise InputWrong(f"--quantization {quantization}: allowed: fp8")
    from shoal.cli.calibrate import calibrate as measure
    from shoal.proofs.calibration import Effort

    effort = Effort(sequences, max_tokens, seconds, file_sequences, learning_rate, updates, seed)
    measure(
        model,
        environment,
        dtype,
        max_length,
        effort,
        output,
        typer.echo,
        targets=target or (),
        engine=engine,
        quantization="fp8" if quantization is not None else None,
    )


whole_summaries(app)


def main() -> int:
    """Entry point: prints one line for each mistake of the user, without a traceback."""
    try:
        return app(standalone_mode=False, prog_name="shoal") or EXIT_DONE
    except InputWrong as error:
        return _say(EXIT_INPUT_WRONG, *error.lines)
    except RunFailed as error:
        return _say(EXIT_RUN_FAILED, str(error))
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        from shoal.cli.extras import lacking

        if (line := lacking(error)) is None:
            raise
        return _say(EXIT_INPUT_WRONG, line)
    except Exception as error:
        if hasattr(error, "format_message"):  # click's own: a missing option, an unknown verb
            where = getattr(getattr(error, "ctx", None), "command_path", None) or "shoal"
            return _say(EXIT_INPUT_WRONG, f"{error.format_message().rstrip('.')}; see `{where} --help`")
        raise


def _say(code: int, *lines: str) -> int:
    for line in lines:
        print_note(line)
    return code


if __name__ == "__main__":
    sys.exit(main())
