"""Makes the report of a run folder: `report.html`, `report.json` and the exported `model/`. Called by `shoal up` at the end and by `shoal report`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.run import Prepared
from shoal.contracts.signed import BadSignature
from shoal.environments.base import BadEnvironment, load
from shoal.errors import InputWrong
from shoal.files import write_atomically
from shoal.report.access import RunAccess, open_run
from shoal.report.collect import ModelPlace, ReportData, collect
from shoal.report.datasets import read_card, read_filter, read_task_report
from shoal.report.export import check_replaceable, export_model
from shoal.report.facts import StoreFacts, StoreReader
from shoal.report.html import page
from shoal.report.loading import LoadCommand, load_commands
from shoal.report.plots import all_plots
from shoal.report.records import SampleRecord, SessionRecord, parse_records
from shoal.storage import NotFound
from shoal.storage.checkpoint_files import WrongWeights

FALLBACK_PROMPT = "The"
UNKNOWN_CONTEXT = 512
"""Tokens that the printed commands allow where the run's longest sequence is not known: any model has them."""


@dataclass(frozen=True)
class Report:
    """The written files: the data, the two files, and commands that load the model (none without a model)."""

    data: ReportData
    html: Path
    json: Path
    commands: list[LoadCommand]


def make_report(run_dir: Path, metrics_file: Path, model_folder: Path) -> Report:
    """Write the report of a run on this machine.

    Raises `NoRun` when there is nothing to report, `storage.StoreUnavailable` when the store is away.
    """
    lines = metrics_file.read_text(errors="replace").splitlines() if metrics_file.is_file() else []
    records, unreadable = parse_records(lines)
    return report_of(open_run(run_dir), Readings(records, unreadable=unreadable), run_dir, model_folder)


@dataclass(frozen=True)
class Readings:
    """Readings of the parts while they ran. `steps_total` is what an orchestrator told, where no configuration says it."""

    records: Sequence[SessionRecord | SampleRecord] = ()
    unreadable: int = 0
    steps_total: int | None = None
    notes: Sequence[str] = ()


def report_of(
    access: RunAccess, readings: Readings, folder: Path, model_folder: Path, facts: StoreFacts | None = None
) -> Report:
    """Write the report of an opened run into `folder`, which is there; raises `storage.StoreUnavailable`. `facts`: if they were read already."""
    facts = StoreReader(access.store).read() if facts is None else facts
    facts.notes += readings.notes
    model: ModelPlace | None = None
    try:
        check_replaceable(model_folder)
        model = export_model(access, model_folder)
    except (InputWrong, WrongWeights, BadSignature, NotFound) as error:
        facts.notes.append(f"the trained model was not exported: {error}")
    total = access.config.steps if access.config is not None else readings.steps_total
    data = collect(
        access.run,
        total,
        facts,
        readings.records,
        unreadable_records=readings.unreadable,
        model=model,
        vine=access.config.recipe.vine if access.config is not None else None,
    )
    data.tasks = read_task_report(access.store, data.notes)
    data.filtered = read_filter(access.store, data.notes)
    data.dataset = read_card(access)
    longest = _longest(access)
    commands = load_commands(Path(model.path), example_prompt(access), longest) if model else []
    report = Report(data, folder / "report.html", folder / "report.json", commands)
    write_atomically(report.json, (json.dumps(data.to_json(), indent=2, allow_nan=False) + "\n").encode())
    write_atomically(report.html, page(data, all_plots(data), commands).encode())
    return report


def _longest(access: RunAccess) -> int:
    """Tokens of the run's longest sequence."""
    if access.config is None:
        return UNKNOWN_CONTEXT
    return (access.config.sft or access.config.recipe).max_sequence_length


def example_prompt(access: RunAccess) -> str:
    """The first task as a worker would put it, for the commands; one word when the table or the environment is not there."""
    try:
        prepared = Prepared.from_json(access.store.get(keys.PREPARED))
    except (NotFound, ValidationError):
        return FALLBACK_PROMPT
    return prepared.example_prompt if prepared.example_prompt is not None else _of_table(access, prepared)


def _of_table(access: RunAccess, prepared: Prepared) -> str:
    """Of a run whose prepare wrote no example."""
    try:
        from shoal.contracts.task_table import BadTaskTable, read_tasks
    except ImportError:  # the CLI alone has no Parquet
        return FALLBACK_PROMPT
    length = access.config.length_reward if access.config is not None else None
    try:
        task = read_tasks(access.store.get(keys.task_table(prepared.tasks_digest)))[0]
        return load(prepared.environment).prompt(task, length.targets[0] if length else None)
    except (NotFound, BadTaskTable, BadEnvironment, IndexError):
        return FALLBACK_PROMPT
