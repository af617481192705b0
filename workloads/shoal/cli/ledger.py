"""The verbs of `shoal ledger`: show, verify and prove a run's ledger, without trusting its writer. Thin (docs/ledger.md).

Exit codes: 0 all is well, 1
the ledger or the proof is not valid, 2 the input was wrong or the store does not answer. Text of nodes and orchestrators is escaped before it is
printed.
"""

import json
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_RUNS_DIR, AsJson, Credentials, Endpoint, Join, RunKey, RunsDir
from shoal.cli.printing import print_line, print_note
from shoal.errors import InputWrong, RunFailed

if TYPE_CHECKING:
    from shoal.ledger.entries import LedgerEntry

app = typer.Typer(
    name="ledger",
    help="The ledger of a run: read it, check it, prove its entries. Example: shoal ledger verify arithmetic",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[SOURCE]", help="Run, its folder, a copy (the folder above ledger/), or s3://BUCKET/PREFIX/RUN."
    ),
]


@app.command()
def show(
    source: Source = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="HEX", help="Only this node; the first digits are enough.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only entries of this kind.")] = None,
    last: Annotated[int, typer.Option("--last", min=0, help="Only the newest N entries; 0: all.")] = 0,
    totals: Annotated[
        bool, typer.Option("--totals", help="Print each node's contribution instead of entries.")
    ] = False,
    probation: Annotated[
        int | None,
        typer.Option(
            "--probation",
            min=0,
            help="Accepted files that a node needs before its work counts; default: the ledger's terms. 0: every file counts.",
        ),
    ] = None,
    as_json: AsJson = False,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    run_key: RunKey = None,
    join: Join = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Print the entries of a ledger, or each node's contribution; only checked entries are shown.

    Example: shoal ledger show arithmetic --totals
    """
    from shoal.ledger.reading import read_ledger
    from shoal.ledger.text import entry_line, is_chosen, totals_lines, totals_records
    from shoal.report.ledger_sources import open_source

    opened = open_source(source, runs_dir, run_key=run_key, join=join, endpoint=endpoint, credentials=credentials)
    wanted: deque[LedgerEntry] = deque(maxlen=last or None)

    def choose(entry: "LedgerEntry") -> None:
        if not totals and is_chosen(entry, node, kind):
            wanted.append(entry)

    audit = read_ledger(opened, print_note, each=choose)
    if totals:
        if as_json:
            print_line(json.dumps(totals_records(audit.report, probation)))
        else:
            for line in totals_lines(audit.report, probation):
                print_line(line)
    else:
        for entry in wanted:
            print_line(json.dumps(entry.model_dump(mode="json")) if as_json else entry_line(entry))
    _fail_if_wrong(audit.report.problems)


@app.command()
def verify(
    source: Source = None,
    documents: Annotated[
        bool,
        typer.Option("--documents", help="Also compare entries with the verdicts, batches and weights that they name."),
    ] = False,
    slash_votes: Annotated[
        int | None,
        typer.Option(
            "--slash-votes",
            min=1,
            max=16,
            metavar="K",
            help="validation.slashVotes: validators that must agree on each reject; default: the ledger's terms, its run.json, or 1.",
        ),
    ] = None,
    kept: Annotated[
        Path | None,
        typer.Option("--kept", metavar="FILE", help="Checkpoint from an earlier --keep: the ledger must continue it."),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="FILE", help="File for the newest checkpoint, for a later --kept.")
    ] = None,
    as_json: AsJson = False,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    run_key: RunKey = None,
    join: Join = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Check a whole ledger: roster, chain, signatures, checkpoints, and with --documents the documents that entries name.

    Example: shoal ledger verify s3://shoal/shoal/arithmetic --endpoint https://store.example --join node.json --kept checkpoint.json
    """
    from shoal.ledger.reading import read_ledger
    from shoal.ledger.text import report_lines, report_record, votes_words
    from shoal.report.ledger_proofs import newest_checkpoint, read_kept
    from shoal.report.ledger_sources import open_source

    if slash_votes is not None and not documents:
        raise InputWrong("--slash-votes is compared with the findings in the store: give --documents too")
    opened = open_source(source, runs_dir, run_key=run_key, join=join, endpoint=endpoint, credentials=credentials)
    opened = replace(opened, slash_votes=slash_votes)
    before = [read_kept(kept, opened.trust)] if kept is not None else []
    audit = read_ledger(opened, print_note, kept=before, documents=documents)
    if as_json:
        print_line(json.dumps(report_record(audit.report, opened.trust)))
    else:
        votes = votes_words(slash_votes, audit.report, opened.configured_votes)
        for line in report_lines(audit.report, opened.trust, documents, votes):
            print_line(line)
    _fail_if_wrong(audit.report.problems)
    if keep is not None:
        keep.write_bytes(newest_checkpoint(opened, audit).to_json() + b"\n")


@app.command()
def audit(
    source: Source = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="STAGES",
            help="Some of batches,steps,draws,rewards,proofs; default: all. The ledger itself is always checked.",
        ),
    ] = None,
    rows: Annotated[
        float, typer.Option("--rows", metavar="SHARE", help="Share of a file's rows whose proofs are checked.")
    ] = 0.05,
    files: Annotated[
        float,
        typer.Option(
            "--files", metavar="SHARE", help="Share of accepted files that are checked; rejected ones all are."
        ),
    ] = 1.0,
    train_steps: Annotated[
        str | None,
        typer.Option(
            "--train-steps",
            metavar="A-B",
            help="Trainer steps to compare; those before are repeated too. Default: all.",
        ),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(
            "--seed",
            metavar="TEXT",
            help="Seed that selects files and rows. Default: random; printed, and kept in --work.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=256, help="Files checked at a time.")] = 1,
    work: Annotated[
        Path | None,
        typer.Option(
            "--work", metavar="DIR", help="Folder in which this audit keeps its state and resumes. Default: audits/RUN."
        ),
    ] = None,
    as_json: AsJson = False,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    run_key: RunKey = None,
    join: Join = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Recompute a run from its ledger and store: draws, rewards, proofs, batches, and the trainer's steps bit for bit.

    Example: shoal ledger audit arithmetic --train-steps 0-69 --rows 0.05 --jobs 2
    """
    from shoal.cli.ledger_audit import run_audit, stages_of, steps_of
    from shoal.ledger.reading import read_ledger
    from shoal.recompute.text import result_lines, result_record
    from shoal.report.ledger_sources import open_for_audit

    stages, steps = stages_of(only), steps_of(train_steps)
    for name, share in (("--rows", rows), ("--files", files)):
        if not 0.0 < share <= 1.0:
            raise InputWrong(f"{name} is {share:g}; allowed: above 0, to 1")
    opened, config = open_for_audit(
        source, runs_dir, run_key=run_key, join=join, endpoint=endpoint, credentials=credentials
    )
    entries: list[LedgerEntry] = []
    found = read_ledger(opened, print_note, documents=True, each=entries.append)
    result = run_audit(opened, config, found, entries, stages, steps, rows, files, seed, jobs, work, print_note)
    if as_json:
        print_line(json.dumps(result_record(result, opened.trust)))
    else:
        for line in result_lines(result, opened.trust):
            print_line(line)
    _fail_if_wrong([f"{each.stage}: {each.where}: {each.what}" for each in result.findings])


@app.command()
def proof(
    source: Source = None,
    entry: Annotated[
        int | None, typer.Option("--entry", min=0, metavar="N", help="Prove that entry N is in the ledger.")
    ] = None,
    since: Annotated[
        Path | None,
        typer.Option("--since", metavar="FILE", help="Prove that the ledger continues this kept checkpoint."),
    ] = None,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="FILE", help="Check a proof; needs the run's key and no ledger.")
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    run_key: RunKey = None,
    join: Join = None,
    endpoint: Endpoint = None,
    credentials: Credentials = None,
) -> None:
    """Print a short proof as JSON, or check one that somebody gave you.

    Example: shoal ledger proof arithmetic --entry 42 > proof.json

    Example: shoal ledger proof --check proof.json --run-key 1f2e...
    """
    from shoal.report.ledger_proofs import check_file, prove_entry, prove_since
    from shoal.report.ledger_sources import open_source

    if [entry is not None, since is not None, check is not None].count(True) != 1:
        raise InputWrong("give one of --entry N, --since FILE and --check FILE")
    if check is not None:
        print_line(check_file(check, run_key, join))
        return
    opened = open_source(source, runs_dir, run_key=run_key, join=join, endpoint=endpoint, credentials=credentials)
    made = (
        prove_entry(opened, entry, print_note)
        if entry is not None
        else prove_since(opened, since or Path(), print_note)
    )
    print_line(made.to_json().decode())


def _fail_if_wrong(problems: list[str]) -> None:
    if problems:
        from shoal.text import plain

        for problem in problems[1:20]:
            print_note(plain(problem, 500))
        more = f" (and {len(problems) - 20} more)" if len(problems) > 20 else ""
        raise RunFailed(plain(problems[0], 500) + more)
