"""What the code of commit 0e83d1e6 (25 November) reads of what today's code writes, as `record_older_reader.py` asked it.

What it refuses is known here, with why. That code is in the history of one repository only, and in no tag: the answers are recorded, and whoever
lacks the commit may add documents that were not asked about. Where the commit is there, each must have been.
"""

import json
import subprocess

from record_older_reader import COMMIT, READS, ROOT, recorded, rendered

ANSWERS: dict[str, str] = json.loads(READS.read_text())["documents"]
REFUSED, NO_KIND = "refused: ", "it does not know this kind of document"

ALWAYS = {
    "document.next_run_key": "in the roster of each run that today's operator makes, and so in its run.json, node.json and offers to join",
    "sampler": "in what every run tells its nodes",
    "answers": "in each verdict that accepts a file",
    "data_digest": "in the metrics of each step",
    "learning": "in each answer about a run with judged files",
    "version_bytes": "in each answer about a run with a version",
    "logits": "in the profile, and in what nodes are told, of a run whose proofs were calibrated with an engine in halves",
    "gpu_memory_bytes": "in the registration of each node with a GPU that says its memory",
    "example_prompt": "in prepared.json of each run",
    "tasks_digest_found": "in prepared.json of each run on a file or data set",
    "given_unix": "in the record of each lease",
    "program_seconds": "in a verdict on a file whose programs ran",
    "left_out": "in a verdict on a file with an outlier",
    "document.left_out": "in the entry of such a file",
    "document.looked_at": "in the entry of such a file",
}
"""Fields that runs have without anybody asking for something new: that code cannot take part in these runs."""

ASKED = {
    *("curriculum", "prompts", "pools", "solved"),
    *("mixture", "by_source", "by_task_type", "environment"),
    *("packages", "tasks.packages", "engine.hosts", "engine.pipelineParallelSize"),
    *("claimed_rows", "rewards_claimed", "document.claimed_rows", "rewards.0.turns"),
    *("quantization", "several_versions", "routes", "router_replay_mismatch", "rollouts", "part", "owner"),
    *("lease.part", "sized", "more"),
    *("prompt", "truncation", "commits", "gpuMemoryGib", "engine"),
    *("document.changes", "document.first_signature", "document.keys", "document.kind"),
    "stability.maxClipRatio",
    *("pools.0.sampler", "validation.thresholds.drawnGaps", "sft.muon"),
    *(
        "storage.azure",
        "storage.gcs",
        "storage.retention",
        "storage.s3.workloadIdentity",
        "storage.s3.credentialsSecret",
    ),
    *(f"recipe.algorithm.{name}" for name in ("cispo", "custom", "dppo", "gspo")),
    *(
        f"recipe.{name}"
        for name in ("credit", "mismatchCorrection", "muon", "overlongFilter", "routerReplay", "schedules", "sources")
    ),
    *(f"trainer.{name}" for name in ("contextParallel", "expertParallel", "offload")),
    *(f"tasks.dataset.{name}" for name in ("maxRefusedShare", "rowLimit", "shuffleSeed", "subset", "where")),
    *(f"tasks.dataset.columns.{name}" for name in ("extract", "prompt", "template")),
    "tasks.offlineFilter.solveRate",
}
"""Fields that a manifest, a change of keys, an owner's flag or a node's own question asks for."""


def refused_fields() -> set[str]:
    found = [answer.removeprefix(REFUSED) for answer in ANSWERS.values() if answer.startswith(REFUSED)]
    return {field for answer in found for field in answer.split(", ")}


def can_be_asked() -> bool:
    """Whether this clone has the older code."""
    return (
        subprocess.run(["git", "-C", ROOT, "cat-file", "-e", COMMIT], capture_output=True, check=False).returncode == 0
    )


def test_every_document_was_asked_about() -> None:
    wanted = {each["name"] for each in [*recorded(), *rendered()]}
    assert ANSWERS.keys() <= wanted, "a document went away, or has another name"
    assert wanted <= ANSWERS.keys() or not can_be_asked(), "run tests/recorded/record_older_reader.py"


def test_what_is_refused_is_known_with_why() -> None:
    assert refused_fields() == ALWAYS.keys() | ASKED
    assert {each for each in ANSWERS.values() if not each.startswith(REFUSED)} == {"read", NO_KIND}


def test_the_configuration_of_a_plain_manifest_is_read() -> None:
    """As builders write it; the roster is that of a run which that code made, since golden manifests have it."""
    refused = {name for name, answer in ANSWERS.items() if "/" in name and answer != "read"}
    assert refused == {
        "inferencepool/two_hosts/sums-wide-node/node.json",
        "inferencepool/two_hosts_in_groups/sums-wide-node/node.json",
        "trainingrun/azure/sums-config/run.json",
        "trainingrun/gcs/sums-config/run.json",
        "trainingrun/workload_identity/sums-config/run.json",
    }
