"""docs/parquet.md, from the schemas that writers and readers use: every column with its type. Called by `__main__`."""

from dataclasses import fields

import pyarrow as pa
from tools.docs.tables import GENERATED, table

from shoal.contracts.file_size import MAX_FILE_BYTES
from shoal.contracts.rollouts import (
    FINISH_REASONS,
    ROLLOUT_SCHEMA,
    ROUTES_FIELD,
    SEGMENT_FIELDS,
    SEGMENT_TOKENS,
    RolloutMetadata,
)
from shoal.contracts.sft_data import PROBLEM_SCHEMA, SFT_SCHEMA, TRACE_SCHEMA
from shoal.contracts.task_table import TASKS_SCHEMA

ROLLOUTS = {
    "run": "name of the run",
    "step": "rollout step that the file is for",
    "policy_version": "version that sampled the rows; of several in a file the oldest",
    "node": "public key of the node, 64 hex digits",
    "submission": "number of the submission, leased by the orchestrator",
    "problem_id": "problem in the task table",
    "prompt_index": "which drawn prompt of the submission",
    "sample_index": "which sample of that prompt",
    "prompt_tokens": "token ids of the prompt",
    "completion_tokens": "token ids of the completion",
    "completion_logprobs": "natural logarithms at `temperature`; 0 where a token was not sampled",
    "completion_mask": "false where a token is a tool's output and was not sampled",
    "finish_reason": f"one of {', '.join(FINISH_REASONS)}",
    "task_type": "kind of the task",
    "target_length": "target of the length reward; null without one",
    "task_reward": "the worker's claim; validators score again. Null where it could not score the row",
    "length_penalty": "the worker's claim",
    "reward": "the worker's claim; the trainer reads rewards from verdicts, never from here",
    "seed": "seed of the row's sampler, drawn from the beacon",
    "temperature": "sampling temperature",
    "proofs": "TOPLOC proofs of 258 bytes, one for every 32 sampled tokens of a stretch or part of them",
}
SEGMENTS = {
    "segment_versions": "versions that the row's tokens are of, ascending, each once; the file's oldest is `policy_version`",
    "segment_starts": f"first completion token of each: 0, then multiples of {SEGMENT_TOKENS}",
}
ROUTES = {
    "routes": "experts of each sampled token in each layer that has some: ascending, each as the number of experts skipped before it, in a byte; two "
    "bytes with more than 256 experts",
}
TASKS = {
    "problem_id": "identity of the problem",
    "task_type": "kind of the task",
    "prompt": "JSON: text, or a list of chat messages",
    "verification_info": "JSON object with what the environment judges by",
    "metadata": "JSON object with what is kept beside the task",
}
TRACES = {
    "problem_id": "identity of the problem",
    "task_type": "kind of the task",
    "prompt": "the prompt as the model saw it, a request for a length included",
    "completion": "what it wrote, without the end-of-sequence token",
    "reward": "task reward by the validators' scoring",
    "tokens": "length of the completion, its end-of-sequence token included",
}
PROBLEMS = {
    "problem_id": "identity of the problem",
    "samples": "completions that could be scored",
    "correct": "completions with task reward 1",
    "mean_tokens": "mean length of its completions",
}
SFT_ROWS = {
    "row_id": "identity of the row",
    "prompt_tokens": "token ids of the prompt: context, not learnt",
    "completion_tokens": "token ids that are learnt, the end-of-sequence token included",
}


def parquet_page() -> str:
    """The whole page."""
    lines = ["# Parquet", "", GENERATED, ""]
    lines += ["Columns are required, in this order and of exactly these types, except for those that may be null.", ""]
    lines += ["## Rollouts", ""]
    lines += [
        f"One row a completion, one file a submission, at most {MAX_FILE_BYTES >> 20} MiB and one row group. Key "
        "`uploads/<node>/<sha256>.parquet`. The file's metadata has "
        + ", ".join(f"`shoal.{field.name}`" for field in fields(RolloutMetadata))
        + ".",
        "",
    ]
    lines += _columns(ROLLOUT_SCHEMA, ROLLOUTS)
    lines += [
        "In a run with `rollouts.versions: Several` a file of several versions has these columns more, at the end:",
        "",
    ]
    lines += _columns(pa.schema(SEGMENT_FIELDS), SEGMENTS)
    lines += ["Files of steps have a last column where the recipe has `routerReplay`:", ""]
    lines += _columns(pa.schema([ROUTES_FIELD]), ROUTES)
    lines += ["## Task table", "", "Key `tasks/<digest>.parquet`: what a run asks.", ""]
    lines += _columns(TASKS_SCHEMA, TASKS)
    lines += ["## Traces of a data set", "", "Key `datasets/<name>/part-00000.parquet`, by a run of mode Generate.", ""]
    lines += _columns(TRACE_SCHEMA, TRACES)
    lines += ["## Problems of a data set", "", "Key `datasets/<name>/problems-00000.parquet`.", ""]
    lines += _columns(PROBLEM_SCHEMA, PROBLEMS)
    lines += ["## Rows of supervised fine-tuning", "", "Key `sft/*.parquet`, made by prepare.", ""]
    lines += _columns(SFT_SCHEMA, SFT_ROWS)
    return "\n".join(lines).rstrip() + "\n"


def _columns(schema: pa.Schema, meanings: dict[str, str]) -> list[str]:
    """A row a column; raises ValueError when a column has no meaning here, or a meaning no column."""
    if set(schema.names) != set(meanings):
        raise ValueError(
            f"tools/docs/parquet.py: {set(schema.names) ^ set(meanings)} is in the schema or here, not in both"
        )
    return table(
        ("column", "type", "null", "meaning"),
        [
            (f"`{field.name}`", _type(field.type), "yes" if field.nullable else "", meanings[field.name])
            for field in schema
        ],
    )


def _type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_type(kind.value_type)}"
    return {"float": "float32", "double": "float64"}.get(str(kind), str(kind))
