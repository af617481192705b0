"""`shoal init`: a first manifest for a model, a data set and a number of GPUs, commented with what it expects.

In: what the person gave. Out: the manifest's text, checked by the rules that an API server has, and notes about what does not fit. The model's size
comes from `config.json` where that can be read (a folder, a hub), else from `--parameters` or the size in the name; `shoal.planner` does the rest.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.model_size import GENERATED_PARAMETERS, config_of, parameters_given, shape_by
from shoal.errors import InputWrong
from shoal.planner.disks import GIB, volumes
from shoal.planner.division import GPUS_A_NODE, SHARED_ENGINE, Division, divide, host_bytes
from shoal.planner.memory import Method, total
from shoal.planner.model_shape import ModelShape, UnknownShape, shape_of_parameters
from shoal.text import count, size

if TYPE_CHECKING:
    from collections.abc import Sequence

GENERATED = "generated"
"""In the place of a model: the tiny one that is made on the spot, for the tasks of `arithmetic`."""
STEPS = 100
CPU_WORKERS = 2
METHOD_WORDS: dict[Method, str] = {
    "Full": "with all weights trained",
    "LoRA": "with low-rank adapters, because all weights do not fit",
    "LoRA, offloaded": "with low-rank adapters and weights in host memory, because more does not fit",
}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class ManifestRequest:
    """What the person gave. `environment`: None to take a data set's usual one. Of several data sets, each has `@ENVIRONMENT` behind it where that is
    not mathematics."""

    model: str
    datasets: Sequence[str]
    gpus: int
    gpu_gb: int = 80
    parameters: str | None = None
    environment: str | None = None
    name: str | None = None

    @property
    def words(self) -> str:
        """The data sets in words."""
        return " and ".join(self.datasets)


@dataclass(frozen=True)
class FirstManifest:
    """The manifest's text and, in words, what a person should know before starting it."""

    name: str
    text: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Source:
    """A model or a data set as the manifest names it: flow-style YAML, and what should be said beside it."""

    yaml: str
    note: str = ""


def first_manifest(asked: ManifestRequest) -> FirstManifest:
    """Write the manifest. Raises InputWrong for a model whose size cannot be told, or for tasks that are not there."""
    model, shape, shape_note = _model(asked)
    tasks, task_notes = _tasks(asked)
    division = divide(shape, asked.gpus, asked.gpu_gb * 10**9)
    name = asked.name or _run_name(asked.model)
    notes = [*filter(None, (model.note, shape_note, *task_notes)), *division.problems]
    text = _text(asked, name, model, tasks, shape, division, notes)
    _check(text, name)
    return FirstManifest(name, text, tuple(notes))


def write(made: FirstManifest, path: Path) -> None:
    """Write the text into a new file. Raises InputWrong where one is already, or nothing can be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(made.text)
    except FileExistsError:
        raise InputWrong(f"--output {path}: is there already; give another name, or remove it") from None
    except OSError as error:
        raise InputWrong(f"--output {path}: cannot be written: {error.strerror}") from None


def _check(text: str, name: str) -> None:
    from shoal_operator.api.manifest import ManifestError, load_manifest

    try:
        load_manifest(text, f"{name}.yaml")
    except ManifestError as error:
        raise InputWrong(*str(error).splitlines()) from None


def _model(asked: ManifestRequest) -> tuple[_Source, ModelShape, str]:
    """The model as the manifest names it, its shape, and what was guessed of it."""
    given = parameters_given(asked.parameters)
    folder = Path(asked.model).expanduser()
    if asked.model == GENERATED:
        return _Source("{generated: {}}"), shape_of_parameters(given or GENERATED_PARAMETERS), ""
    if folder.is_dir():
        return (
            _Source(f"{{path: {_quoted(str(folder.resolve()))}}}"),
            *shape_by(given, lambda: config_of(folder), asked.model),
        )
    if not _HUB_NAME.fullmatch(asked.model):
        raise InputWrong(
            f"--model {asked.model}: is no folder here and no hub id; allowed: owner/name, a folder with config.json, or {GENERATED!r}"
        )
    from shoal.environments.hub import HubRefused, commit_of, model_config

    revision, note = "main", ""
    try:
        revision = commit_of("model", asked.model, "main")
    except HubRefused as error:
        note = _not_pinned(error)

    def read() -> dict[str, object]:
        if note:
            raise UnknownShape("the hub cannot be reached from here")
        try:
            return model_config(asked.model, revision)
        except HubRefused as error:
            raise UnknownShape(str(error)) from None

    source = _Source(f"{{huggingFace: {asked.model}, revision: {_quoted(revision)}}}", note)
    return source, *shape_by(given, read, asked.model)


def _tasks(asked: ManifestRequest) -> tuple[str, list[str]]:
    """`spec.tasks` as flow-style YAML, or as a block below it for several data sets; and notes."""
    if asked.model == GENERATED and any(each != "arithmetic" for each in asked.datasets):
        raise InputWrong(f"--model {GENERATED}: is made for --dataset arithmetic; give that, or another model")
    if len(asked.datasets) == 1:
        dataset, named = _with_environment(asked.datasets[0])
        tasks, said = _origin(dataset, asked.environment or named)
        return f"{{{tasks}}}", said
    if asked.environment is not None:
        raise InputWrong(
            f"--environment {asked.environment}: is for one --dataset; with several, name it behind each: --dataset DATA@{asked.environment}"
        )
    lines = ["", "    # One prompt of each in turn; raise a weight for more of one.", "    mixture:"]
    notes: list[str] = []
    names: list[str] = []
    for dataset in asked.datasets:
        found, said = _origin(*_with_environment(dataset))
        names.append(_source_name(dataset, names))
        lines.append(f"      - {{name: {names[-1]}, weight: 1, {found}}}")
        notes += said
    return "\n".join(lines), notes


def _with_environment(dataset: str) -> tuple[str, str | None]:
    """`DATA@ENVIRONMENT` in its parts. A task of lm-evaluation-harness has its own @, for a revision, and a generator one for a level."""
    data, at, environment = dataset.rpartition("@")
    whole = (
        not at
        or dataset.startswith(("lm-eval:", "reasoning-gym:", "verifiers:"))
        or Path(dataset).expanduser().exists()
    )
    return (dataset, None) if whole else (data, environment)


def _source_name(dataset: str, taken: Sequence[str]) -> str:
    """A name for a source, such as gsm8k for openai/gsm8k; numbered where two would be alike."""
    stem = Path(_with_environment(dataset)[0].partition(":")[0]).stem.lower()
    plain = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:36].strip("-") or "tasks"
    return next(name for name in (plain, *(f"{plain}-{number}" for number in range(2, 99))) if name not in taken)


def _origin(dataset: str, environment: str | None) -> tuple[str, list[str]]:
    """Environment and data of one source, and notes. A data set is judged as mathematics unless another environment is named."""
    from shoal.environments.base import installed

    known = installed()
    if environment is not None and environment.partition(":")[0] not in known:
        raise InputWrong(f"--environment {environment}: not installed here; installed: {', '.join(sorted(known))}")
    path = Path(dataset).expanduser()
    if dataset.partition(":")[0] in known and not path.exists():
        if environment not in (None, dataset):
            raise InputWrong(
                f"--dataset {dataset}: is an environment, which makes its own tasks; leave out --environment"
            )
        return f"environment: {_quoted(dataset)}", []
    environment = environment or "math"
    if path.exists():
        return f"environment: {environment}, dataset: {{path: {_quoted(str(path.resolve()))}}}", []
    if not _HUB_NAME.fullmatch(dataset):
        raise InputWrong(
            f"--dataset {dataset}: is nothing here, no hub id and no installed environment; allowed: a file, a folder, owner/name, or one of "
            + ", ".join(sorted(known))
        )
    from shoal.environments.hub import HubRefused, commit_of

    revision, notes = "main", []
    try:
        revision = commit_of("dataset", dataset, "main")
    except HubRefused as error:
        notes.append(_not_pinned(error))
    return f"environment: {environment}, dataset: {{huggingFace: {dataset}, revision: {_quoted(revision)}}}", notes


def _not_pinned(error: Exception) -> str:
    return f"{str(error)[:160]}; prepare resolves `main` to a commit when the run starts"


def _run_name(model: str) -> str:
    """A name of at most 33 characters, which leaves room for that of an offline filter's run."""
    plain = re.sub(r"[^a-z0-9]+", "-", Path(model).name.lower()).strip("-")[:33].strip("-")
    return plain or "run"


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z/][\w./-]*", text) else json.dumps(text, ensure_ascii=False)


def _text(
    asked: ManifestRequest,
    name: str,
    model: _Source,
    tasks: str,
    shape: ModelShape,
    made: Division,
    notes: Sequence[str],
) -> str:
    """The manifest. Each setting has its reason beside it; what is not set has its default (docs/reference.md)."""
    settings = made.settings
    needed = volumes(shape, STEPS)
    where = f"{made.gpus} GPUs of {asked.gpu_gb} GB" if made.gpus else "CPUs"
    lines = [
        f"# {asked.model} on {asked.words}, on {where}. Written by `shoal init`; nothing here was tuned on this run.",
        f"# The model has {count(shape.parameters)} parameters{'' if shape.exact else '; its widths are those of a published model of that size'}.",
        *(f"# NOTE: {note}" for note in notes),
        "#",
        f"#   shoal env preview -f {name}.yaml   three prompts as the model sees them, and how answers score",
        f"#   shoal up -f {name}.yaml            on this machine; on a cluster: kubectl apply -f {name}.yaml",
        "#",
        *_memory_lines(shape, made),
        "apiVersion: shoal.dev/v1alpha1",
        "kind: TrainingRun",
        f"metadata: {{name: {_quoted(name)}}}",
        "spec:",
        f"  model: {model.yaml}",
        f"  tasks:{'' if tasks.startswith(chr(10)) else ' '}{tasks}",
        f"  steps: {STEPS}",
        f"  # {settings.prompts_per_step * settings.group_size} completions a step, in {settings.optimizer_steps} updates. A starting point"
        f" for this size{', ten times as large for adapters' if made.method != 'Full' else ''}; raise the rate if the reward does not move.",
        "  recipe:",
        f"    promptsPerStep: {settings.prompts_per_step}",
        f"    groupSize: {settings.group_size}",
        f"    optimizerSteps: {settings.optimizer_steps}",
        f"    learningRate: {_rate(settings.learning_rate)}",
        f"    maxSequenceLength: {settings.max_sequence_length}   # prompt and completion; raise it if answers are cut off",
        f"  sampling: {{maxCompletionTokens: {settings.max_completion_tokens}}}",
        *_part_lines(made, shape, needed.worker, needed.relay, needed.scratch, needed.store),
    ]
    return "\n".join(lines) + "\n"


def _memory_lines(shape: ModelShape, made: Division) -> list[str]:
    """What each part needs, by cause, as comments."""
    where = "GPU memory" if made.gpus else "memory"
    ranks = f", each of {made.trainer_gpus} ranks" if made.trainer_gpus > 1 else ""
    engines, judges = (f", each of {each} GPUs" if each > 1 else "" for each in (made.engine_gpus, made.validator_gpus))
    lines = [f"# {where.capitalize() if where == 'memory' else where} that is expected, {METHOD_WORDS[made.method]}:"]
    for title, parts in (
        (f"trainer{ranks}", made.trainer),
        (f"worker{engines}", made.engine),
        (f"validator{judges}", made.validator),
    ):
        lines.append(f"#   {title}: {size(total(parts))}")
        lines += [f"#     {size(part.nbytes):>9}  {part.cause}" for part in parts if part.nbytes]
    if made.gpus:
        lines.append(f"#   host memory of all trainer pods together: {size(host_bytes(made, shape))}")
    return lines


def _part_lines(made: Division, shape: ModelShape, worker: int, relay: int, scratch: int, store: int) -> list[str]:
    """Trainer, pool, relays, validator, storage and images."""
    pool = f"name: pool, replicas: {made.engines if made.gpus else CPU_WORKERS}"
    trainer, validator, lines = [], "", []
    if made.gpus:
        trainer.append(f"gpu: {{count: {min(made.trainer_gpus, GPUS_A_NODE)}}}")
        pool += f", gpu: {{count: {made.engine_gpus}}}"
        validator = f"gpu: {{count: {made.validator_gpus}}}"
        if made.shared:  # by itself it fills 85 % of the GPU with versions
            validator += f", validation: {{weightsMemoryBytes: {total(made.validator)}}}"
        if made.engine_gpus > 1:
            pool += f", engine: {{tensorParallelSize: {made.engine_gpus}}}"
        elif made.shared:
            pool += f", engine: {{gpuMemoryUtilization: {SHARED_ENGINE}}}"
    if made.trainer_replicas > 1:
        trainer.insert(0, f"replicas: {made.trainer_replicas}")
    if made.method != "Full":
        trainer.append("settings: {lora: {}" + (", cpuOffload: true}" if made.method == "LoRA, offloaded" else "}"))
    trainer.append(f"scratchSize: {_gib(scratch)}")
    if made.shared:
        lines.append(
            "  # Trainer, worker and validator share one GPU of this machine (`shoal up`). A cluster gives each a GPU of its own: three."
        )
    elif made.gpus:
        lines.append(
            f"  # {made.trainer_gpus} for the trainer, {made.engines} x {made.engine_gpus} for workers, {made.validator_gpus} for the validator."
        )
    lines += [f"  trainer: {{{', '.join(trainer)}}}", f"  inferencePools: [{{{pool}, weightsSize: {_gib(worker)}}}]"]
    lines.append(f"  relayServer: {{replicas: 1, cacheSize: {_gib(relay)}}}")
    if validator:
        lines.append(f"  validator: {{{validator}}}")
    lines.append(
        f"  storage: {{folderSize: {_gib(store)}}}   # versions have {size(2 * shape.parameters)}, trained states {size(12 * shape.parameters)}"
    )
    return lines


def _rate(value: float) -> str:
    """`5.0e-6`, which YAML reads as a number."""
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}e{int(exponent)}"


def _gib(nbytes: int) -> str:
    """A Kubernetes quantity, rounded up, 1Gi at least."""
    return f"{max(1, -(-nbytes // GIB))}Gi"
