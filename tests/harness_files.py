"""Tasks of lm-evaluation-harness on files of a test: a YAML file and its documents."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

SUMS: dict[str, Any] = {
    "task": "made_sums",
    "dataset_path": "json",
    "output_type": "generate_until",
    "test_split": "test",
    "fewshot_split": "train",
    "num_fewshot": 2,
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "{{answer}}",
    "metric_list": [
        {
            "metric": "exact_match",
            "aggregation": "mean",
            "higher_is_better": True,
            "ignore_case": True,
            "regexes_to_ignore": [",", "(?s).*#### ", "\\.$"],
        }
    ],
    "generation_kwargs": {"until": ["Question:", "<|im_end|>"], "do_sample": False},
    "filter_list": [
        {
            "name": "strict-match",
            "filter": [
                {"function": "regex", "regex_pattern": "#### (\\-?[0-9\\.\\,]+)"},
                {"function": "take_first"},
            ],
        },
        {
            "name": "flexible-extract",
            "filter": [
                {"function": "regex", "group_select": -1, "regex_pattern": "(-?[$0-9.,]{2,})|(-?[0-9]+)"},
                {"function": "take_first"},
            ],
        },
    ],
    "metadata": {"version": 3.0},
}
"""As gsm8k of the harness is."""


def write_harness_task(
    folder: Path, changes: dict[str, Any] | None = None, documents: list[dict[str, Any]] | None = None
) -> str:
    """A task in `folder`, ready for `load`: `lm-eval:PATH`. A change to None takes a field away; `!function module.name` is one to YAML."""
    folder.mkdir(parents=True, exist_ok=True)
    made = documents or [
        {"question": f"What is {a} plus {a + 2}?", "answer": f"{a} and {a + 2} are {2 * a + 2}.\n#### {2 * a + 2}"}
        for a in range(10, 16)
    ]
    shown = [{"question": f"What is 1 plus {b}?", "answer": f"#### {b + 1}"} for b in range(5)]
    files = {}
    for split, rows in (("test", made), ("train", shown if documents is None else made)):
        path = folder / f"{split}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files[split] = str(path)
    given = {**SUMS, "dataset_kwargs": {"data_files": files}, **(changes or {})}
    path = folder / "task.yaml"
    text = yaml.safe_dump({key: value for key, value in given.items() if value is not None}, width=1000)
    path.write_text(re.sub(r"'(!function [^']+)'", r"\1", text))
    return f"lm-eval:{path}"
