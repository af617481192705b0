"""A data set of verified traces as a run of mode Generate leaves it, for the tests that read one."""

import hashlib

from shoal.contracts import keys
from shoal.contracts.dataset_card import DatasetCard, DatasetFile
from shoal.contracts.datasets import GenerateSettings
from shoal.contracts.sft_data import Trace, write_traces
from shoal.storage import Store


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put_traces(store: Store, traces: list[Trace]) -> None:
    """What a run of mode Generate leaves, in two parts."""
    parts = []
    for number, rows in enumerate((traces[:9], traces[9:])):
        data = write_traces(rows)
        store.put(keys.dataset_part("traces", number), data)
        name = keys.dataset_part("traces", number).rpartition("/")[2]
        parts.append(DatasetFile(name=name, sha256=sha256(data), size=len(data), rows=len(rows)))
    card = DatasetCard(
        name="traces", run="traces", licence="unknown", model_id="m", weights_digest="1" * 64, environment="arithmetic",
        environment_digest="2" * 64, tasks_digest="3" * 64, task_count=16, samples_per_problem=4, temperature=1.0,
        filters=GenerateSettings(), rows=len(traces), completion_tokens=9, problems=16, problems_solved=16,
        correct_histogram=[0, 16], parts=parts, problem_files=[],
    )  # fmt: skip
    store.put(keys.dataset_card("traces"), card.to_json())
