"""The verb `shoal eval`: a model's score on environments, on this machine. Thin; the work is done in `shoal.evaluation`."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import Credentials, Endpoint, Objects
from shoal.errors import InputWrong, RunFailed
from shoal.text import plain

if TYPE_CHECKING:
    from shoal.contracts.pools import EngineSettings
    from shoal.contracts.prompts import PromptSettings
    from shoal.contracts.run import RunConfig


BESIDE_A_MANIFEST = ("model", "file", "seed", "output", "objects", "endpoint", "credentials")
"""Parameters that a manifest's benchmarks do not answer themselves."""


def evaluate(
    context: typer.Context,
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Folder with a Hugging Face checkpoint, such as runs/NAME/model.")
    ],
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="ENV",
            help="Environment whose tasks the model answers, or lm-eval:TASK@REVISION of lm-evaluation-harness; repeatable.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="Manifest whose spec.evaluation.benchmarks the model answers, sampled as it says; instead of --env.",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000,
            help="Tasks of each environment; default: 64, or all of an lm-evaluation-harness task.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, max=4096, help="Answers to each task: the k of avg@k.")] = 4,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="Sampling temperature; 0: the likeliest.")] = 1.0,
    top_p: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Sample from the likeliest tokens that have this probability together."),
    ] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Sample from this many of the likeliest tokens; 0: all.")] = 0,
    min_p: Annotated[
        float, typer.Option(min=0.0, max=0.999, help="Leave out tokens less likely than this share of the likeliest.")
    ] = 0.0,
    template: Annotated[
        str | None,
        typer.Option(
            help="Chat: the tokenizer's chat template; Raw: the environment's text; absent: as the model's run, else Chat if it has one."
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message of tasks that bring none.")] = None,
    assistant_prefix: Annotated[
        str | None, typer.Option(help="Text that every answer begins with, such as '<think>'; \\n in it is a line end.")
    ] = None,
    template_arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments of the chat template: '{\"enable_thinking\": false}'.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most tokens of a completion; default: as in the model's run, or 1024, within the model's context.",
        ),
    ] = None,
    target_length: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Length that the prompt asks for, in tokens; 0: none; default: the lengths of the model's run.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed for tasks and sampling.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="File for the record, with every problem.")
    ] = None,
    objects: Objects = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Score a model on environments or a manifest's benchmarks, on this machine: avg@k, pass@k, intervals, lengths, share of truncated answers.

    Examples: shoal eval runs/arithmetic/model --env arithmetic --samples 8 --json scores.json;
    shoal eval runs/largest/model -f largest.yaml

    Exit codes: 0 done, 1 no answer could be scored, 2 model, environment or options are wrong.
    """
    from shoal.contracts.evaluation import Truncation
    from shoal.environments.packages import BadPackages, of_manifest
    from shoal.inference.evaluation.record import (
        NothingScored,
        check_paths,
        evaluate_all,
        of_benchmarks,
        of_environments,
    )
    from shoal.inference.evaluation.sampling import CannotEvaluate, EvaluationRequest
    from shoal.report.ledger_sources import open_objects
    from shoal.storage import StoreUnavailable

    if (not env) == (file is None):
        raise InputWrong("give either --env ENV, once or more, or -f FILE")
    if file is None and objects is not None:
        raise InputWrong("--store: only a manifest names objects; give -f FILE")
    brought = ExitStack()
    try:
        if file is not None:
            check_paths(model, output)
            config, engine = run_of(context, file)
            store = open_objects("--store", objects, endpoint, credentials) if objects is not None else None
            brought.enter_context(of_manifest(config, store))
            asked = of_benchmarks(config, engine, seed, store)
        else:
            if top_p == 0.0:
                raise InputWrong(
                    "--top-p 0: allowed are more than 0, to 1; the likeliest token alone is --temperature 0"
                )
            truncation = Truncation.of(min_p, top_k, top_p)
            prompt = prompt_settings(template, system, assistant_prefix, template_arguments)
            check_paths(model, output)
            wanted = EvaluationRequest(samples, temperature, max_tokens, seed, target_length, truncation, prompt)
            asked = of_environments(env or [], count, wanted)
        evaluate_all(model, asked, output, typer.echo)
    except (CannotEvaluate, BadPackages) as error:
        raise InputWrong(str(error) if file is None else f"{file}: {error}") from None
    except StoreUnavailable as error:
        raise RunFailed(f"the store is away: {plain(error, 400)}") from None
    except NothingScored as error:
        raise RunFailed(str(error)) from None
    finally:
        brought.close()


def run_of(context: typer.Context, file: Path) -> "tuple[RunConfig, EngineSettings]":
    """The manifest's run, and how its first pool's engines start; raises InputWrong for an option that it answers itself."""
    from shoal.cli.local_run import config_of, read_manifest
    from shoal.contracts.pools import EngineSettings

    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in BESIDE_A_MANIFEST and source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            raise InputWrong(
                f"--{option}: with -f the manifest's benchmarks say it; allowed beside -f: --seed, --json, --store"
            )
    manifest = read_manifest(file)
    pools = manifest.run.spec.inference_pools
    return config_of(manifest), pools[0].engine if pools else EngineSettings()


def prompt_settings(
    template: str | None, system: str | None, assistant_prefix: str | None, template_arguments: str | None
) -> "PromptSettings | None":
    """The options as settings, None where none was given. Raises InputWrong."""
    from pydantic import ValidationError

    from shoal.contracts.prompts import PromptSettings

    given = {
        "template": template,
        "system": system,
        "assistant_prefix": assistant_prefix and assistant_prefix.replace("\\n", "\n"),
    }
    found: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    try:
        if template_arguments is not None:
            found["template_arguments"] = json.loads(template_arguments)
        return PromptSettings.model_validate(found) if found else None
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise InputWrong(f"--{name}: {first['msg']}") from None
    except ValueError as error:
        raise InputWrong(f"--template-arguments: not JSON: {error}") from None
