"""`shoal node earned`: what a run's ledger says of this machine's node, checked against the run's key that this machine trusts since it joined.

In: the folder of a joined run (its `node.json`, the node's key), and the ledger: a run of this machine, a copy, an S3 URL. The ledger is read and
checked as `shoal ledger show` does: an orchestrator that pays another sum than its ledger says is found out, and so is a ledger of another run.
"""

import json
from pathlib import Path
from typing import Any

from shoal.cli.node_status import find_home
from shoal.contracts.newer import from_newer_json
from shoal.contracts.run import NodeConfig
from shoal.crypto.keys import PrivateKey
from shoal.errors import InputWrong
from shoal.ledger.audit import AuditReport, NodeTotals
from shoal.ledger.reading import read_ledger
from shoal.ledger.text import probation_line, state_of
from shoal.report.ledger_sources import open_source
from shoal.text import Say, count, percent, plain


def earned(
    folder: Path,
    run: str | None,
    source: str,
    key: Path | None,
    say: Say,
    note: Say,
    *,
    as_json: bool,
    endpoint: str | None,
    credentials: Path | None,
) -> list[str]:
    """Print it; returns the ledger's problems, with any of which the figures prove nothing. Raises `InputWrong`."""
    home = find_home(folder, run)
    config_file = home / "config" / "node.json"
    config = from_newer_json(NodeConfig, config_file.read_bytes())
    node = _public(key or home / "key" / "node.pem")
    opened = open_source(
        source, folder, run_key=config.run_key, join=config_file, endpoint=endpoint, credentials=credentials
    )
    report = read_ledger(opened, note).report
    if report.run != config.run:
        raise InputWrong(f"{plain(source, 200)} is the ledger of run {plain(report.run, 60)}, and this is {config.run}")
    if as_json:
        say(json.dumps(record(report, node, config.run_key)))
    else:
        for line in lines(report, node, config.run_key):
            say(line)
    return report.problems


def lines(report: AuditReport, node: str, run_key: str) -> list[str]:
    """In words."""
    totals = report.nodes.get(node, NodeTotals())
    credit, share = _credit(report, totals)
    return [
        f"run        {report.run}, run key {run_key}",
        f"node       {node}",
        f"state      {state_of(totals)}",
        f"files      {count(totals.files_accepted)} accepted, {count(totals.files_rejected)} rejected",
        f"tokens     {count(totals.tokens)} in accepted files, {totals.flops:.3g} floating-point operations by estimate",
        f"credit     {count(credit)} tokens, {percent(share)} of all that are credited in this run",
        f"terms      {probation_line(report, None)}",
        f"checked    {count(report.entries)} entries against the run key: "
        + ("the ledger is good" if not report.problems else "THE LEDGER IS WRONG"),
    ]


def record(report: AuditReport, node: str, run_key: str) -> dict[str, Any]:
    """For programs."""
    totals = report.nodes.get(node, NodeTotals())
    credit, share = _credit(report, totals)
    return {
        "run": report.run,
        "run_key": run_key,
        "node": node,
        "state": state_of(totals),
        "files_accepted": totals.files_accepted,
        "files_rejected": totals.files_rejected,
        "tokens": totals.tokens,
        "flops": totals.flops,
        "credit": credit,
        "share": share,
        "problems": report.problems,
    }


def _credit(report: AuditReport, totals: NodeTotals) -> tuple[int, float]:
    """Tokens that count for this node, and their share of those that count for anybody."""
    everybody = sum(each.credit() for each in report.nodes.values())
    credit = totals.credit()
    return credit, credit / everybody if everybody else 0.0


def _public(path: Path) -> str:
    try:
        return PrivateKey.load(path).public
    except (OSError, ValueError) as error:
        raise InputWrong(f"{path}: {error}; give this node's key with --key FILE") from None
