"""`shoal generate`: `shoal up` for a run of mode Generate, whose data set then lies in the run's folder.

Called by `main`. The last lines say how many completions were kept, why the others were dropped, and how to load the data set.
"""

from pathlib import Path

from rich.console import Console

from shoal.cli.local_run import Manifest
from shoal.cli.output import print_plain
from shoal.cli.up import up
from shoal.contracts.dataset_card import DatasetCard
from shoal.errors import EXIT_DONE, EXIT_RUN_FAILED, InputWrong
from shoal.text import count, percent

DATASETS_FOLDER = "datasets"


def generate(manifest: Manifest, runs_dir: Path, console: Console, *, live: bool, fresh: bool) -> int:
    """Run until the data set is written, and copy it out of the store; returns the exit code. Raises `InputWrong` for a run of another mode."""
    if manifest.run.spec.mode != "Generate":
        raise InputWrong(
            f"{manifest.path}: spec.mode is {manifest.run.spec.mode}; `shoal generate` runs mode Generate, `shoal up` any mode"
        )
    code = up(manifest, runs_dir, console, live=live, fresh=fresh)
    if code != EXIT_DONE:
        return code
    from shoal.report.access import open_run
    from shoal.report.datasets import DamagedDataset, export_dataset
    from shoal.storage import StoreUnavailable

    run_dir = runs_dir / manifest.name
    try:
        access = open_run(run_dir)
        assert access.config is not None  # the run of a folder has one
        folder = run_dir / DATASETS_FOLDER / access.config.generate.dataset
        card = export_dataset(access, folder)
    except (DamagedDataset, StoreUnavailable) as error:
        print_plain(console, f"the data set cannot be copied: {error}")
        return EXIT_RUN_FAILED
    if card is not None:
        for line in last_lines(card, folder):
            print_plain(console, line)
    return EXIT_DONE


def last_lines(card: DatasetCard, folder: Path) -> list[str]:
    """The outcome of the completions, and how to load the kept ones."""
    part = card.parts[0].name if card.parts else card.problem_files[0].name
    seen = card.rows + sum(card.left_out.values())
    return [
        f"{count(card.rows)} of {count(seen)} completions kept; {count(card.problems_solved)} of {count(card.problems)} problems solved "
        f"({percent(card.problems_solved / card.problems if card.problems else None)})",
        *(f"left out, {reason}: {count(number)}" for reason, number in card.left_out.items()),
        f"data set: {folder} ({len(card.parts)} files)",
        "",
        "Load it:",
        f"python -c \"import pyarrow.parquet as p; print(p.read_table('{folder / part}'))\"",
    ]
