"""docs/model-types.md from benchmarks/results/model_types.json: what the trainer and vLLM make of each model type. Called by `tools.docs`."""

import json
from pathlib import Path
from typing import Any

RESULT = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "model_types.json"


def model_types_page(path: Path = RESULT) -> str:
    """One table of types that are trained, one of those that are refused."""
    types: dict[str, Any] = json.loads(path.read_bytes())["types"]
    lines = [
        "# Model types",
        "",
        "Made by `make docs` from what `python -m benchmarks.model_types --serve` found; do not edit. `tests/training/test_model_types.py` tries"
        " each type again. The name is `model_type` in `config.json`, and every model is a tiny random one.",
        "",
        "- **float64**: greatest relative difference of loss, log-probabilities, entropies and all gradients. A pack's are compared with those that"
        " transformers finds for each sample alone. All are float64, norms and softmax too.",
        "- **export**: a version has the names and bytes of the checkpoint that was read.",
        "- **adapters**: where `trainer.settings.lora` can put them. Its default `targetModules` name all linear layers of most types, and all"
        " experts; on others the trainer says which names there are.",
        "- **planned**: `shoal plan` counts its parameters exactly.",
        "- **vLLM**: a worker's engine with vLLM's CPU build serves the version, and its log-probabilities are the trainer's within 0.001 nats.",
        "- **redraw**: a validator draws all of that engine's tokens again from their seeds.",
        "- **proofs**: a validator accepts all proofs of that engine.",
        "",
        "| type | shows | float64 | export | adapters | planned | vLLM | redraw | proofs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_trained(name, found) for name, found in types.items() if "reason" not in found]
    lines += ["", "## Refused", "", "The trainer ends when it loads such a model, with this reason.", ""]
    lines += ["| type | shows | reason | needed |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | {found['shows']} | {_cell(found['reason'])} | {_cell(found['needed'])} |"
        for name, found in types.items()
        if "reason" in found
    ]
    return "\n".join([*lines, ""])


def _trained(name: str, found: dict[str, Any]) -> str:
    export, planned = ("yes" if found[key] else "no" for key in ("same_bytes", "planned"))
    cells = (
        f"`{name}`",
        found["shows"],
        f"{found['gap_float64']:.0e}",
        export,
        _cell(found["adapters"]),
        planned,
        *(_cell(found[key]) for key in ("served", "redraw", "proofs")),
    )
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
