"""The verb `shoal eval`: a model's score on environments, on this machine. Thin; the work is done in `shoal.evaluation`."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.errors import InputWrong, RunFailed


def evaluate(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Folder with a Hugging Face checkpoint, such as runs/NAME/model.")
    ],
    env: Annotated[
        list[str],
        typer.Option(
            "--env",
            metavar="ENV",
            help="Environment whose tasks are asked, or lm-eval:TASK@REVISION of lm-evaluation-harness; repeatable.",
        ),
    ],
    count: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000,
            help="Tasks of each environment; absent: 64, or all of a task of lm-evaluation-harness.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, max=4096, help="Answers to each task: the k of avg@k.")] = 4,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="Sampling temperature; 0: the likeliest.")] = 1.0,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of a completion at most; absent: as in the model's run, else 1024, if the model has room.",
        ),
    ] = None,
    target_length: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Length to ask for in the prompt, in tokens; 0: do not ask; absent: those that the model's run asked for.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of tasks and sampling.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Record to write, with every problem.")
    ] = None,
) -> None:
    """Score a model on environments, on this machine: avg@k, pass@k, confidence intervals, lengths, the share that was cut.

    Example: shoal eval runs/arithmetic/model --env arithmetic --samples 8 --json scores.json

    Exit codes: 0 done, 1 nothing could be scored, 2 model, environment or options are wrong.
    """
    from shoal.inference.evaluation.record import NothingScored, evaluate_all
    from shoal.inference.evaluation.sampling import CannotEvaluate, EvaluationRequest

    wanted = EvaluationRequest(samples, temperature, max_tokens, seed, target_length)
    try:
        evaluate_all(model, env, count, wanted, output, typer.echo)
    except CannotEvaluate as error:
        raise InputWrong(str(error)) from None
    except NothingScored as error:
        raise RunFailed(str(error)) from None
