"""The card of a trained model, as a hub shows it: its base, data, recipe, scores, the ledger's head, licence. Pure, except for `read_facts`.

In: what the store and the run's configuration say. Out: `README.md`, Markdown behind YAML as model hubs read it. Called by `shoal push`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from shoal.contracts import keys
from shoal.contracts.final_model import FinalModel
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.steps import StepMetrics
from shoal.evaluation.versions import VersionEvaluation
from shoal.ledger.entries import LedgerCheckpoint
from shoal.ledger.reading import stored_checkpoints
from shoal.report.access import RunAccess
from shoal.report.collect import first_and_last
from shoal.report.evaluations import COLUMNS, score_rows
from shoal.report.facts import read_evaluations, read_steps
from shoal.storage import NotFound, find
from shoal.storage.versions import sealed_versions
from shoal.text import count, number, plain

UNKNOWN_LICENCE = "unknown"
SETTINGS = ("mode", "model", "tasks", "steps", "async_level", "seed", "recipe", "sampling", "length_reward", "sft")
"""Fields of the run's settings that the card repeats: what somebody needs to train the same again. No address, path or name of a Secret."""
CLAIMED = (
    "Some environments of the run give scores that cannot be made again (a judge model, a live service). Their rewards and scores are those that the"
    " run's own workers claimed: no validator scored these answers, and nobody else can. `shoal ledger show --totals` counts them."
)
PRIVATE = ("path", "object")
"""Fields below them that say where files lie at the owner's."""


@dataclass(frozen=True)
class CardFacts:
    """What a card is made of. `config` is None for a run whose store alone is known, `checkpoint` for one without a ledger so far."""

    run: str
    run_key: str
    version: int
    config: RunConfig | None
    steps: list[StepMetrics]
    evaluations: list[VersionEvaluation] = field(default_factory=list)
    checkpoint: LedgerCheckpoint | None = None
    rewards_claimed: bool = False
    """Whether some rewards are those that the run's own workers claimed."""


def read_facts(access: RunAccess, run_key: str) -> CardFacts | None:
    """Read them; None for a run that has trained no version. Costs a listing and one small document a step, score and ledger checkpoint."""
    store = access.store
    versions = sealed_versions(store)
    try:
        version = versions[-1] if versions else FinalModel.from_json(store.get(keys.FINAL_SEAL)).version
    except NotFound:
        return None
    if version == 0:
        return None
    evaluations = read_evaluations(store)
    checkpoints, _ = stored_checkpoints(store, access.roster)
    newest = checkpoints[max(checkpoints)][0] if checkpoints else None
    prepared = find(store, keys.PREPARED, Prepared.from_json)
    claimed = prepared is not None and prepared.rewards_claimed
    return CardFacts(access.run, run_key, version, access.config, read_steps(store), evaluations, newest, claimed)


def model_card(facts: CardFacts, name: str, licence: str) -> str:
    """`README.md` of the repository `name`."""
    head = yaml.safe_dump(_metadata(facts, name, licence), sort_keys=False, allow_unicode=True, width=120)
    body = [
        f"# {name.rpartition('/')[2]}",
        _origin(facts),
        "## Data and recipe",
        _settings(facts),
        "## Training",
        *_training(facts),
        *([CLAIMED] if facts.rewards_claimed else []),
        "## Scores",
        *_scores(facts),
        "## Ledger",
        *_ledger(facts),
        "## Licence",
        licence
        if licence != UNKNOWN_LICENCE
        else "Not stated. The licence of the base model and of the data may apply.",
    ]
    return f"---\n{head}---\n\n" + "\n\n".join(body) + "\n"


def _metadata(facts: CardFacts, name: str, licence: str) -> dict[str, Any]:
    """What hubs read: https://github.com/huggingface/hub-docs, modelcard.md."""
    made: dict[str, Any] = {
        "license": licence,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["shoal", "reinforcement-learning"],
    }
    said = _said(facts)
    if base := said.get("model", {}).get("huggingFace"):
        made["base_model"] = base
    if datasets := sorted(set(_datasets([said.get("tasks"), said.get("sft")]))):
        made["datasets"] = datasets
    results = [
        {
            "task": {"type": "text-generation"},
            "dataset": {"name": row.benchmark, "type": row.benchmark},
            "metrics": [{"type": row.cells[0].rpartition("(")[2].rstrip(")"), "value": round(row.value, 4)}],
        }
        for row in score_rows(facts.evaluations)
        if row.version == facts.version and row.value is not None and row.complete
    ]
    if results:
        made["model-index"] = [{"name": name.rpartition("/")[2], "results": results}]
    return made


def _datasets(value: Any) -> Iterator[str]:
    """Repositories of every data set in some settings, wherever in them it stands."""
    if isinstance(value, list):
        for each in value:
            yield from _datasets(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key == "dataset" and isinstance(each, dict) and isinstance(each.get("huggingFace"), str):
                yield each["huggingFace"]
            yield from _datasets(each)


def _said(facts: CardFacts) -> dict[str, Any]:
    """The settings that the card repeats, as a manifest writes them."""
    if facts.config is None:
        return {}
    settings = {name: facts.config.settings()[name] for name in SETTINGS}
    return {
        "".join(word.title() if at else word for at, word in enumerate(name.split("_"))): _public(_plain_value(value))
        for name, value in settings.items()
        if value is not None
    }


def _plain_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain_value(each) for each in value]
    return value.model_dump(mode="json", by_alias=True, exclude_none=True) if hasattr(value, "model_dump") else value


def _public(value: Any) -> Any:
    if isinstance(value, list):
        return [_public(each) for each in value]
    if isinstance(value, dict):
        return {key: "(at the owner's)" if key in PRIVATE else _public(each) for key, each in value.items()}
    return value


def _origin(facts: CardFacts) -> str:
    base = "" if facts.config is None else f" It began as `{plain(facts.config.model_id, 253)}`."
    return (
        f"Policy version {facts.version} of the run `{plain(facts.run, 60)}`, trained with Shoal.{base}"
        " Load it with transformers or vLLM like any model."
    )


def _settings(facts: CardFacts) -> str:
    said = _said(facts)
    if not said:
        return "The run's configuration is not known here; its ledger has its terms."
    return f"```yaml\n{yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=120)}```"


def _training(facts: CardFacts) -> list[str]:
    steps = facts.steps
    if not steps:
        return ["No step's report was found."]
    if steps[-1].supervised:
        held_out = f", of held-out rows {number(steps[0].held_out_loss)} to {number(steps[-1].held_out_loss)}"
        return [f"{len(steps)} steps; loss {number(steps[0].loss)} to {number(steps[-1].loss)}{held_out}."]
    first, last = first_and_last([each.task_reward for each in steps if each.trained])
    tokens = sum(each.completion_tokens for each in steps)
    return [
        f"{len(steps)} steps on {count(tokens)} completion tokens; mean task reward of the first steps {number(first)}, of the last {number(last)}."
    ]


def _scores(facts: CardFacts) -> list[str]:
    rows = score_rows(facts.evaluations)
    if not rows:
        return ["The run scored no benchmark."]
    ends = [row for row in rows if row.version in (0, facts.version)] or rows[-1:]
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {row.version}, {_cell(row.benchmark)} | {' | '.join(map(_cell, row.cells))} |" for row in ends),
    ]
    return [
        "\n".join(lines),
        "Scored by the run's own workers, whose answers its validators checked. Version 0 is the base model.",
    ]


def _cell(text: str) -> str:
    return plain(text, 200).replace("|", "\\|")


def _ledger(facts: CardFacts) -> list[str]:
    head = facts.checkpoint
    key = f"Public key of the run: `{facts.run_key}`."
    if head is None:
        return [f"The run has no checkpoint of its ledger. {key}"]
    return [
        f"Every accepted and rejected contribution is in the run's signed ledger. At {count(head.size)} entries its last entry has the digest"
        f" `{head.head}`, its Merkle root (RFC 9162) is `{head.root}`. {key}"
        " Whoever has the ledger checks all of it with `shoal ledger verify`."
    ]
